"""The parts of ``weft gpu-check`` in order, and its result file.

The file has one JSON object per line. The first line has the predictions of every case and their
SHA-256; it is written before anything is measured.

    facts ── predictions (hashed) ── correctness ── measurements ── platform ── paths ── errors
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from weft.calibration.gpu_check import torch_measurements as measure
from weft.calibration.gpu_check.check_cases import (
    cases_of,
    digest,
    error_table,
    predictions,
)
from weft.calibration.gpu_check.gpu_platform import checked_platform, machine_of
from weft.calibration.gpu_check.torch_check_device import (
    CheckJob,
    CudaDevice,
    StandIn,
    disagreements,
    facts,
)
from weft.calibration.gpu_check.torch_collective_checks import CASES, check_collective
from weft.calibration.gpu_check.torch_kernel_checks import kernel_checks
from weft.errors import UsageError
from weft.gpu.collective_paths import read_nccl_log

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from weft.hardware import Platform

FORMAT = 1
_TIMEOUT = timedelta(minutes=5)


@dataclass
class CheckResult:
    """What a check found; ``lines`` are those of the file."""

    is_gpu: bool
    num_ranks: int
    sha256: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)
    platform: Platform | None = None

    def part(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a part."""
        return [line for line in self.lines if line["part"] == name]

    @property
    def passed(self) -> bool:
        """Whether nothing was wrong."""
        return not any(line.get("passed") is False for line in self.lines)


@dataclass
class ResultFile:
    """Writes lines as they come, on rank 0: a check that dies leaves what it found."""

    path: Path | None
    result: CheckResult

    def add(self, part: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows of a part."""
        for row in rows:
            line = {"part": part, **row}
            self.result.lines.append(line)
            if self.path is not None:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")


def prepare() -> str:
    """Set what must be set before anything is imported; return what the user should know.

    Triton decides when it is imported whether kernels are interpreted.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not count:
        os.environ.setdefault("TRITON_INTERPRET", "1")
        return (
            "no GPU here: every part that needs none runs on CPU tensors in its place; its times "
            "are not those of a GPU"
        )
    if count > 1 and "RANK" not in os.environ:
        raise UsageError(
            f"{count} GPUs are here, but one process was started.",
            f"Run: torchrun --nproc-per-node {count} -m weft gpu-check",
        )
    return ""


def start_job() -> CheckJob:
    """Join the ranks that torchrun started; without it, be the only one."""
    alone = "RANK" not in os.environ
    rank, size = (int(os.environ.get(key, n)) for key, n in (("RANK", "0"), ("WORLD_SIZE", "1")))
    if torch.cuda.is_available():
        device: Any = CudaDevice(int(os.environ.get("LOCAL_RANK", "0")))
        backend = "cpu:gloo,cuda:nccl"
    else:
        device, backend = StandIn(), "gloo"
    if alone:
        store = dist.FileStore(str(Path(tempfile.mkdtemp()) / "store"), 1)  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=_TIMEOUT)
    else:
        dist.init_process_group(backend, timeout=_TIMEOUT)
    return CheckJob(device, rank, size, scale=1.0 if device.is_gpu else 1 / 16)


def log_paths() -> Path | None:
    """Make NCCL write which path each collective takes; before any communicator exists."""
    if not torch.cuda.is_available():
        return None
    path = Path(tempfile.mkdtemp()) / "nccl.%h.%p.log"
    os.environ.setdefault("NCCL_DEBUG", "INFO")
    os.environ.setdefault("NCCL_DEBUG_SUBSYS", "INIT,TUNING")
    return Path(os.environ.setdefault("NCCL_DEBUG_FILE", str(path)))


def run_check(
    path: Path | None, *, on: str | None = None, only_measure: bool = False
) -> CheckResult:
    """Run all parts on this rank and write the file on rank 0; every rank returns the same."""
    log = log_paths()
    job = start_job()
    result = CheckResult(job.device.is_gpu, job.num_ranks)
    file = ResultFile(path if job.rank == 0 else None, result)
    try:
        _run(job, file, log, on, only_measure=only_measure)
    finally:
        dist.destroy_process_group()
    return result


def _run(
    job: CheckJob, file: ResultFile, log: Path | None, on: str | None, *, only_measure: bool
) -> None:
    found, result = facts(job), file.result
    if problems := disagreements(found):
        raise UsageError(
            f"the ranks differ: {'; '.join(problems)}.",
            "Start all ranks with the same software, on devices that reach each other.",
        )
    below = machine_of(found[0]["device"]["name"], job.num_ranks, on, is_gpu=job.device.is_gpu)
    cases = cases_of(job.num_ranks, job.scale)
    before = predictions(cases, below, job.num_ranks)
    result.sha256 = digest(before)
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    head = {"format": FORMAT, "weft": version("weft"), "started": started, "platform": below.name}
    file.add("predictions", [{**head, "sha256": result.sha256, "seconds": before}])
    file.add("facts", found)
    if not only_measure:
        file.add("correctness", _correctness(job))
    measured: dict[str, float] = {}
    repeats = 10 if job.device.is_gpu else 3
    for case in cases:
        measured[case.name] = measure.measure_case(job, case, repeats)
        row = {"case": case.name, "held_out": case.held_out, "seconds": measured[case.name]}
        file.add("measured", [row])
    launch = measure.launches(job)
    file.add("launches", [launch])
    copies = list(measure.copies(job))
    file.add("copies", copies)
    largest = max((c for c in cases if c.group == "product"), key=lambda c: c.product or ())
    file.add("sustained", [measure.sustained(job, largest, measured[largest.name])])
    if not only_measure:
        file.add(
            "communicators", measure.communicators(job, ("all_gather", "all_reduce"), 64 << 20)
        )
        file.add("carve-outs", measure.carve_outs(job, largest))
    source = f"measured on {started[:10]} by weft gpu-check"
    result.platform = checked_platform(
        below, cases, measured, before, launch, copies, source=source
    )
    file.add("paths", _paths(log))
    after = predictions(cases, result.platform, job.num_ranks)
    file.add("errors", error_table(cases, before, after, measured))


def _correctness(job: CheckJob) -> Iterator[dict[str, Any]]:
    dtypes = (torch.float32, torch.bfloat16) if job.device.is_gpu else (torch.float32,)
    for kind in CASES:
        for dtype in dtypes:
            yield check_collective(job, kind, dtype)
    yield from kernel_checks(job)


def _paths(log: Path | None) -> Iterator[dict[str, Any]]:
    """Yield how collectives really ran, as NCCL's log tells."""
    # %h and %p of the name are host and process.
    files = [] if log is None else sorted(log.parent.glob(log.name.partition("%")[0] + "*"))
    if not files:
        yield {"case": "paths of collectives", "skipped": "no log of NCCL or RCCL"}
        return
    for path in files:
        with path.open(encoding="utf-8", errors="replace") as lines:
            nccl_log = read_nccl_log(lines)
        for each, count in nccl_log.paths.items():
            yield {
                "case": f"{each.collective} {each.nbytes}",
                "path": each.path,
                "ctas": each.ctas,
                "detail": each.detail,
                "count": count,
                "nccl": nccl_log.version,
            }
