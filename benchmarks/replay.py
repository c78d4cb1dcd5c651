"""How close replayed steps come to the traces, and what-ifs to what other traces show.

Reads traces of the folder that ``WEFT_DATA`` names.
"""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import data_folder
from benchmarks.rows import Options, Row
from weft.hardware import platform
from weft.trace import Trace, read
from weft.trace.recorded.calls import calls_of
from weft.whatif import errors_of, replay, what_if
from weft.whatif.joined_job import JobReplay, job_of, job_replay, straggler, without_straggler
from weft.whatif.replay import measured_periods

QUESTION = "How close does a replayed trace come to what was measured, and a changed one?"

# Each step put together from the others of its trace.
STEPS = {
    "recsys_8xA100": "hta_traces/recsys_8xA100_rank3.json.gz",
    "nccl_meta_2xA100": "hta_traces/nccl_meta_2xA100_rank0.json.gz",
    "ddp_2xV100": "hta_traces/ddp_2xV100_rank1.json.gz",
    "resnet_ddp_8xMI300X": "tracelens/traces/resnet_ddp_8xMI300X_rank0.json.gz",
}
# The same model on two devices: what the first says of the second.
MOVED = {
    ("qwen1.5-0.5b", "h100-8", "mi300x-8"): ("H100", "MI300X"),
    ("qwen1.5-0.5b", "mi300x-8", "h100-8"): ("MI300X", "H100"),
    ("bert-small", "h100-8", "mi300x-8"): ("H100", "MI300X"),
    ("bert-small", "mi300x-8", "h100-8"): ("MI300X", "H100"),
}
RANKS = "param_dlrm_8xV100/kineto"


def run(options: Options) -> Iterable[Row]:
    """Replay every trace that has a figure."""
    del options
    folder = data_folder("hta_traces")
    yield from _replays(folder)
    yield from _ranks(folder)
    yield from _moved(folder)


def _row(case: dict[str, Any], began: float, **more: Any) -> Row:
    return Row("replay", case, (time.perf_counter() - began,), more={"basis": "predicted", **more})


def _replays(folder: Path) -> Iterator[Row]:
    everything = []
    whole = time.perf_counter()
    for name, path in STEPS.items():
        began = time.perf_counter()
        found = replay(read(folder / path))
        took = (time.perf_counter() - began) / len(found)
        everything += found
        for each in found:
            about = {"measured": each.measured, "predicted": each.simulated, "error": each.error}
            more = {"basis": "predicted", **about, "held_out": each.held_out}
            yield Row("replay", {"trace": name, "what": each.name}, (took,), more=more)
    middle, most = errors_of(everything)
    yield _row(
        {"trace": "all of these", "what": f"{len(everything)} steps"},
        whole,
        error=middle,
        must="median 5 %, none over 12 %",
        reached=f"median {middle:.1%}, none over {most:.1%}",
        met=middle <= 0.05 and most <= 0.12,
    )


def _ranks(folder: Path) -> Iterator[Row]:
    """Yield what ranks wait for each other, with all of them and without the one that is late."""
    began = time.perf_counter()
    paths = sorted((folder / RANKS).glob("rank*.json.gz"))
    job = job_replay(job_of([read(path) for path in paths]))
    base = job.run()
    found, shown = job.waits(base).sum(axis=1), job.waited.sum(axis=1)
    most = float(np.abs(found / shown - 1).max())
    case = {
        "trace": "dlrm_8xV100",
        "ranks": len(job.calls),
        "what": "waiting, the rank it is most wrong of",
    }
    yield _row(
        case, began, measured=float(shown.sum()), predicted=float(found.sum()), error=most,
        must="within 10 %", reached=f"within {most:.1%}", met=most <= 0.1,
    )  # fmt: skip
    yield _without(job, straggler(job, base))


def _without(job: JobReplay, late: int) -> Row:
    """Compare waits at the first collective without a rank: traces tell how long others wait."""
    began = time.perf_counter()
    predicted = np.delete(job.waits(job.run(without_straggler(job, late)))[:, 0], late)
    starts = _first_starts(job)
    others = np.delete(starts, late)
    shown = others.max() - others
    error = float(abs(predicted.sum() / shown.sum() - 1))
    case = {
        "trace": "dlrm_8xV100",
        "ranks": len(job.calls),
        "what": f"first waiting without rank {late}",
    }
    return _row(
        case, began, measured=float(shown.sum()), predicted=float(predicted.sum()), error=error,
        must="within 10 %", reached=f"within {error:.1%} in sum", met=error <= 0.1,
    )  # fmt: skip


def _first_starts(job: JobReplay) -> NDArray[np.float64]:
    pairs = zip(job.model.ranks, job.calls, strict=True)
    return np.array([each.calls.gpu_start[calls[0]] for each, calls in pairs])


def _moved(folder: Path) -> Iterator[Row]:
    for (model, here, there), devices in MOVED.items():
        began = time.perf_counter()
        one, other = (_single(folder, model, device) for device in devices)
        answer = what_if(one, on=platform(there))
        (moved,) = answer.outcomes
        shown = measured_periods(other, calls_of(other))[0].seconds
        error = moved.step / shown - 1
        named = {"must": "within 15 %", "reached": f"{error:+.1%}", "met": abs(error) <= 0.15}
        yield _row(
            {"trace": model, "what": f"{here} to {there}"},
            began,
            measured=shown,
            predicted=moved.step,
            low=moved.low,
            high=moved.high,
            error=error,
            **named,
        )


def _single(folder: Path, model: str, device: str) -> Trace:
    return read(folder / "tracelens" / "traces" / f"{model}_{device}_single.json.gz")
