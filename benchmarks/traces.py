"""How long it takes to load and analyse a trace, and how much memory."""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import environments
from benchmarks.cost import cost_of
from benchmarks.harness import measure
from benchmarks.launch import notice, require_known
from benchmarks.rows import Options, Row
from benchmarks.synthetic_trace import write_bytes, write_events
from weft.errors import RunError
from weft.trace import analyze

QUESTION = "How long does it take to load and analyse a trace, and how much memory?"

EVENTS = 100_000
_REAL = "hta_traces/recsys_8xA100_rank3.json.gz"  # 109,123 events
_TIMEOUT = 900.0  # seconds for one trace
_PEERS = ("traceinsight",)


def run(options: Options) -> Iterable[Row]:
    """Measure the traces in turn; ``--size`` asks for plain files made up to that many bytes."""
    require_known(options.against, _PEERS)
    if not options.sizes:  # a file of gigabytes takes a peer minutes
        options = replace(options, against=options.against or _PEERS)
    for case in _cases(options):
        with case.file() as path:
            yield _measured(case, path, options)


def count_rows(options: Options) -> int:
    """Return how many rows there will be."""
    return len(_cases(options))


@dataclass(frozen=True, slots=True)
class _Case:
    """A trace: one that was recorded, or one made up of so many events or bytes."""

    recorded: Path | None = None
    num_events: int = 0
    nbytes: int = 0

    @property
    def about(self) -> dict[str, Any]:
        if self.recorded:
            return {"trace": self.recorded.name}
        if self.nbytes:
            return {"trace": "made up, plain", "nbytes": self.nbytes}
        return {"trace": "made up, gzip", "events": self.num_events}

    @contextmanager
    def file(self) -> Iterator[Path]:
        if self.recorded:
            yield self.recorded
            return
        with tempfile.TemporaryDirectory(prefix="weft-bench-") as folder:
            if self.nbytes:
                yield write_bytes(Path(folder) / "trace.json", self.nbytes)
            else:
                yield write_events(Path(folder) / "trace.json.gz", self.num_events)


def _cases(options: Options) -> list[_Case]:
    if options.sizes:
        return [_Case(nbytes=size) for size in options.sizes]
    real = Path(os.environ.get("WEFT_DATA", "../shared/data")) / _REAL
    return [_Case(num_events=EVENTS), *([_Case(recorded=real)] if real.exists() else [])]


def analyzed(path: str) -> dict[str, Any]:
    """Load and analyse one file; return parts of the answers: overlap, kernels, idle time."""
    rank = analyze(path).ranks[0]
    return {
        "events": rank.trace.num_events,
        "steps": len(rank.steps),
        "busy": rank.total.busy,
        "exposed": rank.total.exposed,
        "kernels": len(rank.kernel_table),
        "idle": sum(part.seconds for part in rank.idle),
    }


def _measured(case: _Case, path: Path, options: Options) -> Row:
    peaks: dict[str, int] = {}
    found: dict[str, Any] = {}

    def weft() -> float:
        cost = cost_of("benchmarks.traces:analyzed", str(path), timeout=_TIMEOUT)
        peaks["weft"] = max(peaks.get("weft", 0), cost.peak_bytes)
        found.update(cost.value)
        return cost.wall

    def traceinsight() -> float:
        answer = _ask_traceinsight(path)
        peaks["traceinsight"] = max(peaks.get("traceinsight", 0), answer["peak_bytes"])
        return float(answer["wall"])

    peers = {"traceinsight": traceinsight} if options.against else {}
    row = measure("traces", case.about, weft, peers, rounds=options.rounds, warmups=1)
    memory = {"peak_bytes": peaks.pop("weft")}
    memory |= {f"{name}_peak_bytes": peak for name, peak in peaks.items()}
    more = {**memory, "file_bytes": path.stat().st_size, **found}
    return Row(row.bench, row.case, row.times, row.peers, more)


def _ask_traceinsight(path: Path) -> dict[str, Any]:
    home = environments.environment("traceinsight", environments.root(), notice)
    script = Path(__file__).with_name("traceinsight_reader.py")
    command = [str(home / "bin" / "python"), str(script), str(path)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=True)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        spoken = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise RunError(
            f"traceinsight did not read {path.name}: {spoken[-1]}",
            "Leave traceinsight out of --against.",
        ) from error
    return answer
