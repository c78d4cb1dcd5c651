"""Plots of jobs that grow from one device to 131,072."""

from __future__ import annotations

from typing import TYPE_CHECKING

from validation.scale_points import JOBS, RANKS, point
from weft.report.svg import Axis, Chart, Series

if TYPE_CHECKING:
    from validation.scale_points import Job, Point

_SHOWN = ("priority", "partition", "dma", "fused", "compressed")
_DEVICES = Axis("devices", RANKS, "{:,.0f}".format, log=True)


def plots() -> dict[str, Chart]:
    """Draw all of them, by name."""
    drawn = {"exposed": _exposed(), "step": _step()}
    for job, name in zip(JOBS, ("fsdp", "tp-fsdp", "tp-dp", "dlrm"), strict=True):
        drawn[f"strategies-{name}"] = _strategies(job)
    return drawn


def _points(job: Job) -> list[Point]:
    return [point(job, ranks) for ranks in RANKS if ranks >= job.replica]


def _exposed() -> Chart:
    series = []
    for number, job in enumerate(JOBS):
        found = _points(job)
        ranks, shares = [each.num_ranks for each in found], [each.share for each in found]
        series.append(Series(job.name, ranks, shares, "line", number))
    y = Axis("% of the step", (0, 20, 40, 60, 80, 100))
    return Chart("Exposed communication on MI300X nodes", _DEVICES, y, series)


def _step() -> Chart:
    """Return steps relative to those of the fewest devices that hold the job: flat is perfect."""
    series = []
    for number, job in enumerate(JOBS):
        found = [each for each in _points(job) if each.num_ranks >= 8]
        ranks = [each.num_ranks for each in found]
        times = [each.step / found[0].step for each in found]
        series.append(Series(job.name, ranks, times, "line", number))
    x = Axis("devices", RANKS[1:], "{:,.0f}".format, log=True)
    y = Axis("step over that on 8 devices", (0.5, 1, 10, 100, 1000, 10000), log=True)
    return Chart("The same work for every device: how the step grows", x, y, series)


def _strategies(job: Job) -> Chart:
    found = _points(job)
    ranks = [each.num_ranks for each in found]
    series = [
        Series(name, ranks, [each.saved(name) for each in found], "line", number)
        for number, name in enumerate(_SHOWN)
    ]
    y = Axis("% of the step saved", (0, 2, 4, 6, 8, 10))
    return Chart(f"{job.name}: what each strategy buys by itself", _DEVICES, y, series)
