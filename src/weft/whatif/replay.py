"""Replay: a recorded step put together again and simulated, beside what was measured.

A step is replayed with the durations of its own kernels. How it is put together, what waits for
what and what the host takes come from the other steps of the trace. So the error of a replay says
what a changed replay is worth. With one recorded step all comes from it, which is said.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import FormatError
from weft.hardware import platform
from weft.trace.align import Ranked
from weft.trace.links import links_of
from weft.whatif.calls import calls_of
from weft.whatif.order import order_of
from weft.whatif.overheads import overheads_of
from weft.whatif.recorded import Recording, seconds_like
from weft.whatif.stage import ITERATIONS, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.hardware import Platform
    from weft.trace import Collective as Recorded
    from weft.trace import Trace
    from weft.whatif.calls import Calls

_BEHIND = 0.1  # of a period: a device so far behind its host sets the pace
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


def ready_steps(ranked: Ranked) -> list[Ready]:
    """Prepare every step of a trace for its replay."""
    trace, steps = ranked.trace, calls_of(ranked.trace)
    if not steps:
        raise FormatError(
            f"{trace.path!r} has no work of a GPU that its host launched, so nothing to replay.",
            "Record with ProfilerActivity.CPU and ProfilerActivity.CUDA.",
        )
    known = {each.row: each for each in ranked.collectives}
    return [_ready(steps, number, known) for number in range(len(steps))]


def _ready(steps: Sequence[Calls], number: int, known: dict[int, Recorded]) -> Ready:
    others = [step for index, step in enumerate(steps) if index != number]
    model = _alike(others) or [steps[number]]
    order = order_of(model)
    recording = Recording(
        calls=model[0],
        order=order,
        overheads=overheads_of(model, order),
        seconds=seconds_like(model[0], steps[number]),
        collectives=_collectives(model[0], known),
    )
    seconds, by_device = measured_period(steps, number)
    return Ready(steps[number].mark.name, recording, seconds, bool(others), by_device)


def _alike(steps: Sequence[Calls]) -> list[Calls]:
    """Give the steps that ask for what most of them ask for."""
    if not steps:
        return []
    most = Counter(step.signature for step in steps).most_common(1)[0][0]
    return [step for step in steps if step.signature == most]


def _collectives(calls: Calls, known: dict[int, Recorded]) -> dict[int, Recorded]:
    return {number: known[row] for number, row in enumerate(calls.row.tolist()) if row in known}


def measured_period(steps: Sequence[Calls], number: int) -> tuple[float, bool]:
    """Give the period of a step: the host's, or its device's where that is behind all the time."""
    step = steps[number]
    if len(steps) == 1:
        return step.mark.wall, False
    until = step.mark.end if np.isnan(step.until) else step.until
    period = until - step.mark.start
    if min(each.lag for each in steps) < _BEHIND * period:
        return period, False
    if number + 1 < len(steps):
        behind = _began(steps[number + 1]) - _began(step)
    else:
        behind = _ended(step) - _ended(steps[number - 1])
    return (behind, True) if behind > 0 else (period, False)  # clocks that stand still


def _began(step: Calls) -> float:
    return float(np.nanmin(step.gpu_start))


def _ended(step: Calls) -> float:
    return float(np.nanmax(step.gpu_end))


def replay(trace: Trace) -> list[Replay]:
    """Replay every step of a trace."""
    return replays_of(ready_steps(Ranked.of(trace)), machine_of(trace))


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
