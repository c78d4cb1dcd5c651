"""Replay: a recorded step put together again and simulated, beside what was measured.

A step is replayed with the durations of its own kernels. How it is put together, what waits for
what and what the host takes come from the other steps of the trace, those that ask for the same if
there are any. So the error of a replay says what a changed replay is worth. With one recorded step
all comes from it, which is said.

What is measured is the period of a step: the host's, or the device's where the host runs ahead.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.errors import FormatError, ReplayError
from weft.hardware import platform
from weft.trace import Trace, read
from weft.trace.align import RankTrace
from weft.trace.machine_links import links_of
from weft.trace.steps import steps_of
from weft.whatif.calls import calls_of, stand_apart
from weft.whatif.order import order_of
from weft.whatif.overheads import overheads_of
from weft.whatif.recorded import Recording, seconds_like
from weft.whatif.stage import ITERATIONS, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from weft.hardware import Platform
    from weft.trace import TracedCollective as Recorded
    from weft.whatif.calls import Calls

MOST_ERROR = 0.15  # recorded jobs are replayed within 7 %: beyond twice that a replay misses
# something that matters, and so does every change made to it
_BEHIND = 0.1  # of a period: a device so far behind its host sets the pace
_AHEAD = 1.05  # periods of the device over those of the host: more, and the host runs ahead
_STRANGER = "a100-8"  # a device that the catalogue does not have runs opaque kernels as well


@dataclass(frozen=True, slots=True)
class Replay:
    """One step: its period as measured and as simulated, in seconds."""

    name: str
    measured: float
    simulated: float
    held_out: bool  # its structure and host come from other steps alone
    by_device: bool  # the measured period is that of the device, which runs behind the host

    @property
    def error(self) -> float:
        """How much longer the replay is, as a share of what was measured."""
        return self.simulated / self.measured - 1


@dataclass(frozen=True, slots=True)
class Ready:
    """A step ready to be simulated, and what was measured of it."""

    name: str
    recording: Recording
    measured: float
    held_out: bool
    by_device: bool


def ready_steps(ranked: RankTrace) -> list[Ready]:
    """Prepare every step of a trace for its replay."""
    trace, steps = ranked.trace, calls_of(ranked.trace)
    if not steps:
        raise FormatError(
            f"{trace.path!r} has no work of a GPU that its host launched, so nothing to replay.",
            "Record with ProfilerActivity.CPU and ProfilerActivity.CUDA.",
        )
    known = {each.row: each for each in ranked.collectives}
    periods = measured_periods(trace, steps)
    found = [number for number, period in enumerate(periods) if period.seconds > 0]
    if not found:
        raise FormatError(
            f"{trace.path!r}: its {len(steps)} steps take no time, so there is nothing to replay",
            "The profiler's clock stood still; record again.",
        )
    return [_ready(steps, number, periods[number], known) for number in found]


def _ready(
    steps: Sequence[Calls], number: int, period: Period, known: dict[int, Recorded]
) -> Ready:
    others = [step for index, step in enumerate(steps) if index != number]
    same = [step for step in others if step.signature == steps[number].signature]
    model = same or _alike(others) or [steps[number]]
    order = order_of(model)
    recording = Recording(
        calls=model[0],
        order=order,
        overheads=overheads_of(model, order),
        seconds=seconds_like(model[0], steps[number]),
        collectives=_collectives(model[0], known),
        lag=max(0.0, _ended(steps[number]) - steps[number].mark.start - period.seconds),
    )
    name = steps[number].mark.name
    return Ready(name, recording, period.seconds, bool(others), period.by_device)


def _alike(steps: Sequence[Calls]) -> list[Calls]:
    """Give the steps that ask for what most of them ask for."""
    if not steps:
        return []
    most = Counter(step.signature for step in steps).most_common(1)[0][0]
    return [step for step in steps if step.signature == most]


def _collectives(calls: Calls, known: dict[int, Recorded]) -> dict[int, Recorded]:
    return {number: known[row] for number, row in enumerate(calls.row.tolist()) if row in known}


class Period(NamedTuple):
    """How long a step took, and whether that is the period of the device."""

    seconds: float
    by_device: bool


def measured_periods(trace: Trace, steps: Sequence[Calls]) -> list[Period]:
    """Return the period of each step: the host's, or the device's where the host runs ahead.

    A host that runs ahead has steps that say nothing: they are as long as it takes to launch, or
    to wait for room in a queue.
    """
    if len(steps) == 1:
        return [_alone(steps[0])]
    host = [
        (step.mark.end if np.isnan(step.until) else step.until) - step.mark.start for step in steps
    ]
    found = steps_of(trace)
    device = dict(zip((mark.name for mark in found.marks), found.periods, strict=True))
    known = [(mine, theirs) for mine, step in zip(host, steps, strict=True)
             if (theirs := device.get(step.mark.name)) is not None]  # fmt: skip
    # A wait for the device in one step, as the profiler's own when it stops, does not make a host
    # that is ahead in most of them the one that sets the pace.
    lags = [step.lag / mine for step, mine in zip(steps, host, strict=True)]
    ahead = sum(d for _, d in known) > _AHEAD * sum(h for h, _ in known)
    if min(lags) < _BEHIND and not (ahead and median(lags) >= _BEHIND):
        if np.isnan(steps[-1].until) and stand_apart(steps):
            host[-1] = 0.0  # nobody knows when the step behind the last would begin
        return [Period(seconds, by_device=False) for seconds in host]
    last = _ended(steps[-1]) - _ended(steps[-2])
    periods = [device.get(step.mark.name) for step in steps[:-1]] + [last]
    return [
        Period(theirs, by_device=True) if theirs and theirs > 0 else Period(mine, by_device=False)
        for mine, theirs in zip(host, periods, strict=True)  # clocks may stand still
    ]


def _alone(step: Calls) -> Period:
    """Return the period of the only step that launched something.

    It lasts until the next mark, or as long as its own; or as long as its busiest stream took.
    """
    longest, span = 0.0, 0.0
    own = step.own_launches
    for stream in np.unique(step.stream[own]).tolist():
        mine = own[step.stream[own] == stream]
        busy = float(step.seconds[mine].sum())
        if busy > longest:
            longest = busy
            span = float(step.gpu_end[mine].max() - step.gpu_start[mine].min())
    wall = (step.mark.end if np.isnan(step.until) else step.until) - step.mark.start
    return Period(span, by_device=True) if longest > wall else Period(wall, by_device=False)


def _ended(step: Calls) -> float:
    return float(np.nanmax(step.gpu_end))


def replay_error(replays: Sequence[Replay]) -> float:
    """Return how much longer the replay of all steps is than they were, as a share."""
    return sum(each.simulated for each in replays) / sum(each.measured for each in replays) - 1


def doubt(replays: Sequence[Replay]) -> str:
    """Return why nothing should be concluded from a replay, or "" if it is close enough.

    Both count: how far off all steps are together, and how far off the median step is.
    """
    together = replay_error(replays)
    each = float(np.median([abs(one.error) for one in replays]))
    if max(abs(together), each) <= MOST_ERROR:
        return ""
    figure = f"{together:+.1%}" if abs(together) >= each else f"{each:.1%} (the median step)"
    return f"the replay is off by {figure}, more than {MOST_ERROR:.0%}"


def require_close(path: str, replays: Sequence[Replay]) -> None:
    """Raise if a replay is too far from what was measured for anything to rest on it."""
    why = doubt(replays)
    if why:
        raise ReplayError(
            f"{path}: {why}, so what it predicts of a change is unreliable",
            "Record several steps of every rank with ProfilerActivity.CPU and .CUDA, or use "
            "--anyway (anyway=True).",
        )


def replay(trace: Trace | Path | str) -> list[Replay]:
    """Replay every step of a trace, or of its file."""
    found = trace if isinstance(trace, Trace) else read(trace)
    return replays_of(ready_steps(RankTrace.of(found)), machine_of(found))


def replays_of(steps: Sequence[Ready], machine: Platform) -> list[Replay]:
    """Replay steps that are ready."""
    out = []
    for step in steps:
        stage = Stage([step.recording], machine, iterations_of(step))
        seconds = stage.run().step
        out.append(Replay(step.name, step.measured, seconds, step.held_out, step.by_device))
    return out


def iterations_of(step: Ready) -> int:
    """Give how many iterations show the period; a step alone has nothing before or after it."""
    return ITERATIONS if step.held_out else 1


def machine_of(trace: Trace) -> Platform:
    """Give the platform of the traced device, by its name."""
    return links_of(trace.device).machine or platform(_STRANGER)
