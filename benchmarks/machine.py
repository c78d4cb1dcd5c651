"""Where and when something was measured, and the file that remembers it."""

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.rows import Row
from weft.errors import UsageError
from weft.hardware.machine import cpu_model
from weft.report.results import plain

FORMAT = 1


def record(row: Row) -> dict[str, Any]:
    """Return the line that a row becomes in a file of results."""
    result = row.as_result()
    result["median"] = result.pop("seconds")
    return {
        "format": FORMAT,
        **result,
        "runs": len(row.times),
        "machine": machine(),
        "commit": commit(),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def append(path: Path, rows: Iterable[Row]) -> None:
    """Add rows to a file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(plain(record(row)), allow_nan=False) + "\n")


def data_folder(wanted: str) -> Path:
    """Find the folder of measured data, which must have ``wanted`` in it."""
    folder = Path(os.environ.get("WEFT_DATA", "../shared/data"))
    if not (folder / wanted).exists():
        raise UsageError(
            f"the measured data is not here: there is no {wanted} in {folder}",
            "Set WEFT_DATA to its folder.",
        )
    return folder


def machine() -> dict[str, Any]:
    """Describe this machine: results are compared only when this agrees."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "os": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def commit() -> str:
    """Name the commit of the code that runs, with ``+`` where it was changed since."""
    here = Path(__file__).parent
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    return head + ("+" if head and _git(here, "status", "--porcelain") else "")


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()
