"""Groups of figures computed side by side, each in a process of its own, and kept.

A group is computed again when a file that it read has changed: the modules of weft and of this
folder that its process had loaded, the catalogue, the native core, or the measured tables. What was
computed lies in ``build/validation``, one file a part of a group, so an interrupted run goes on
where it stopped. ``python -m validation.group_runs NAME PART FILE`` is one such process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

import validation
import weft
from validation.nccl_tables import data_folder
from validation.target import Target
from weft.cli.outputs import track
from weft.errors import WeftError
from weft.hardware.files import CATALOGUE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from validation import Group

_CHECKOUT = Path(__file__).parents[1]
KEPT = Path(os.environ.get("WEFT_KEPT_FIGURES", _CHECKOUT / "build" / "validation"))
_OURS = ("weft", "validation")
_LONGEST = 1e9  # seconds of a part that was never timed: it starts first


@dataclass(frozen=True, slots=True)
class GroupPart:
    """What one process computes: a group, or a part of a long one."""

    group: str
    part: str

    @property
    def file(self) -> Path:
        """Where its figures are kept."""
        return KEPT / f"{self.group}{'-' * bool(self.part)}{self.part}.json"

    def kept(self) -> list[Target] | None:
        """Return the figures if nothing that they were computed from has changed."""
        found = _read(self.file)
        if found is None or found["data"] != data_fingerprint():
            return None
        if any(_digest(Path(path)) != digest for path, digest in found["files"].items()):
            return None
        return [Target(**each) for each in found["targets"]]

    def seconds(self) -> float:
        """Return the processor time of the last run."""
        found = _read(self.file)
        return _LONGEST if found is None else float(found["seconds"])

    def run(self) -> list[Target]:
        """Compute the figures in a process of its own, one thread each."""
        command = [sys.executable, "-m", "validation.group_runs", self.group, self.part]
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        done = subprocess.run(
            command, cwd=_CHECKOUT, env={**os.environ, **threads}, stderr=subprocess.PIPE,
            text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            raise WeftError(f"figures of {self.group} failed", done.stderr)
        found = _read(self.file)
        assert found is not None, self
        return [Target(**each) for each in found["targets"]]


def grouped_targets(groups: Sequence[Group], processes: int = 0) -> dict[str, list[Target]]:
    """Return the figures of every group, computed side by side where none are kept."""
    parts = [GroupPart(group.name, part) for group in groups for part in group.parts]
    found = {part: targets for part in parts if (targets := part.kept()) is not None}
    left = sorted((part for part in parts if part not in found), key=lambda part: -part.seconds())
    with ThreadPoolExecutor(processes or len(os.sched_getaffinity(0))) as pool:
        computed = track(pool.map(GroupPart.run, left), "validating", len(left))
        found |= dict(zip(left, computed, strict=True))
    return {
        group.name: [t for part in group.parts for t in found[GroupPart(group.name, part)]]
        for group in groups
    }


def compute(part: GroupPart) -> None:
    """Compute a part here and keep it, with the files that it was computed from."""
    before = {path: _digest(path) for path in _candidates()}  # what is edited meanwhile is newer
    group = validation.find_group(part.group)
    targets = [asdict(target) for target in group.targets_of(part.part)]
    loaded = _loaded()
    kept = {
        "data": data_fingerprint(),
        "files": {str(path): before.get(path) or _digest(path) for path in loaded},
        "seconds": process_time(),
        "targets": targets,
    }
    KEPT.mkdir(parents=True, exist_ok=True)
    written = part.file.with_suffix(f".{os.getpid()}")
    written.write_text(json.dumps(kept), encoding="utf-8")
    written.replace(part.file)


def _candidates() -> list[Path]:
    """Return every file of weft and of this folder that may be loaded, and the catalogue."""
    found = (Path(weft.__file__).parent.rglob("*.py"), Path(__file__).parent.glob("*.py"))
    return [*chain(*found), *CATALOGUE.rglob("*.toml")]


def _loaded() -> list[Path]:
    """Return the files of loaded modules, the native core among them, and of the catalogue."""
    modules = [each for name, each in sorted(sys.modules.items()) if name.split(".")[0] in _OURS]
    loaded = {file for module in modules if (file := getattr(module, "__file__", None))}
    return [*map(Path, sorted(loaded)), *sorted(CATALOGUE.rglob("*.toml"))]


@lru_cache
def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


@lru_cache
def data_fingerprint() -> str:
    """Return a digest of the versions that compute and of the sizes and dates of all tables."""
    folder = data_folder()
    tables = sorted(path for path in folder.rglob("*") if path.is_file()) if folder else []
    states = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in tables]
    return sha256(repr((sys.version, np.__version__, states)).encode()).hexdigest()


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found


if __name__ == "__main__":
    compute(GroupPart(sys.argv[1], sys.argv[2]))
