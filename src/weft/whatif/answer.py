"""What if: the replayed step, and what it would take with each change.

The step is the mean over all recorded ones. A change is made to the step that is nearest the mean,
and what it saves there, as a share, is taken of the mean.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.trace import Trace, read
from weft.trace.align import RankTrace
from weft.units import brief
from weft.whatif.change import NAMES, Change, Variant, change
from weft.whatif.elsewhere import elsewhere
from weft.whatif.replay import doubt, require_close
from weft.whatif.scene import Scene, scene_of
from weft.whatif.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from weft.hardware import Platform
    from weft.timeline import Timeline
    from weft.whatif.replay import Replay
    from weft.whatif.stage import Run


# Why a change that needs no collective changes nothing.
_ABSENT = {
    "no-input": "the host goes from one step to the next in no time",
    "no-sync": "the host never waits for the device",
    "no-gaps": "queued kernels follow each other without a pause",
    "no-slowdown": "too few kernels of the trace are seen both with and without collectives",
}


@dataclass(frozen=True, slots=True)
class Base:
    """What changes are held against: the step they are made to, and the mean of all steps."""

    seconds: float
    mean: float
    replays: Sequence[Replay]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step with one change: seconds, a range, and the assumption behind them."""

    name: str
    step: float
    low: float
    high: float
    gain: float  # of the replayed step, as a share
    why: str

    @classmethod
    def of(cls, name: str, why: str, steps: Sequence[float], base: Base) -> Outcome:
        """Make it of the step that is taken to be right and those at the ends of its range.

        What the replay is wrong by, a change may be wrong by, as far as it changes anything.
        """
        shares = [seconds / base.seconds for seconds in steps]
        spread = max(abs(each.error) for each in base.replays) * abs(1 - shares[0])
        low, high = max(0.0, min(shares) - spread), max(shares) + spread
        mean = base.mean
        return cls(name, shares[0] * mean, low * mean, high * mean, 1 - shares[0], why)

    def as_row(self) -> dict[str, Any]:
        """Give it under the keys that ``weft whatif`` has."""
        return {
            name: getattr(self, name) for name in ("name", "step", "gain", "why", "low", "high")
        }


@dataclass(frozen=True)
class Answer:
    """A trace replayed and changed. Times are means over the recorded steps.

    ``doubt`` says why nothing should be concluded from it, "" where the replay is close enough.
    ``straggler`` is the rank that ``no-straggler`` brings in time.
    """

    __repr__ = brief

    file: str
    rank: int | None
    replays: tuple[Replay, ...]
    measured_step: float
    replayed_step: float
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()
    runs: dict[str, Run] = field(default_factory=dict, compare=False)
    doubt: str = ""
    straggler: int | None = None

    @property
    def replay_error(self) -> float:
        """How much longer the replay is than what was measured, as a share."""
        return self.replayed_step / self.measured_step - 1

    def timeline(self, name: str | None = None) -> Timeline:
        """Give the step with the change of that name, or unchanged, as a Timeline."""
        return self.runs[name or ""].timeline()

    def as_row(self) -> dict[str, Any]:
        """Give it under the keys that ``weft whatif`` has."""
        return {
            "file": self.file,
            "rank": self.rank,
            "measured_step": self.measured_step,
            "replayed_step": self.replayed_step,
            "replay_error": self.replay_error,
            "reliable": not self.doubt,
            "held_out": all(each.held_out for each in self.replays),
            "by_device": any(each.by_device for each in self.replays),
            "strategies": [outcome.as_row() for outcome in self.outcomes],
            "steps": [
                {
                    "name": each.name,
                    "measured": each.measured,
                    "replayed": each.simulated,
                    "error": each.error,
                }
                for each in self.replays
            ],
            "notes": list(self.notes),
            "basis": "predicted",
        }


def what_if(
    trace: Trace | Path | str,
    names: Sequence[str] = (),
    *,
    on: Platform | None = None,
    anyway: bool = False,
) -> Answer:
    """Replay one rank's trace, or its file, then with each change; ``on`` moves it elsewhere.

    A replay that is more than ``MOST_ERROR`` off raises a ReplayError, unless ``anyway``.
    """
    found = trace if isinstance(trace, Trace) else read(trace)
    return answer_of(RankTrace.of(found), names, on, anyway=anyway)


def answer_of(
    ranked: RankTrace, names: Sequence[str], on: Platform | None, *, anyway: bool = False
) -> Answer:
    """Answer for a trace whose collectives are known."""
    scene = scene_of(ranked)
    if not anyway:
        require_close(ranked.trace.path, scene.replays)
    run = scene.ground.run
    mean = fmean(each.simulated for each in scene.replays)
    base = Base(run.step, mean, scene.replays)
    made, missing = changes(scene, names, on)
    runs, outcomes = {"": run}, []
    for each in made:
        outcome, runs[each.name] = _outcome(scene, each, base)
        outcomes.append(outcome)
    return Answer(
        file=ranked.trace.path,
        rank=ranked.trace.rank,
        replays=scene.replays,
        measured_step=fmean(each.measured for each in scene.replays),
        replayed_step=mean,
        outcomes=tuple(outcomes),
        notes=(*_notes(scene), *missing),
        doubt=doubt(scene.replays),
        runs=runs,
    )


def changes(
    scene: Scene, names: Sequence[str], on: Platform | None
) -> tuple[list[Change], list[str]]:
    """Make the changes asked for, or all; say of those asked for which change nothing."""
    found, missing = [] if on is None else [elsewhere(scene, on)], list[str]()
    for name in names or (NAMES if on is None else ()):
        made = change(scene, name)
        if made is not None:
            found.append(made)
        elif names:
            missing.append(f"{name} changes nothing here: {_nothing(scene, name)}")
    return found, missing


def _nothing(scene: Scene, name: str) -> str:
    if name in _ABSENT:
        return _ABSENT[name]
    if not scene.comms:
        return "the step has no collective"
    return "no collective of the step has a size, group and device that it is known for"


def _outcome(scene: Scene, made: Change, base: Base) -> tuple[Outcome, Run]:
    run = _run(scene, made.value)
    steps = [run.step, *(_run(scene, each).step for each in made.ends)]
    return Outcome.of(made.name, made.why, steps, base), run


def _run(scene: Scene, variant: Variant) -> Run:
    if variant.rebuilt:
        stage = Stage([variant.recording], scene.ground.machine, scene.ground.stage.iterations)
        return stage.run(first=variant.first)
    return scene.ground.stage.run([variant.recording], variant.first)


def _notes(scene: Scene) -> list[str]:
    notes = []
    if not scene.ground.ready.held_out:
        notes.append("one step was recorded, so its replay is put together from itself")
    if scene.ground.ready.by_device:
        notes.append("the device runs behind its host: steps are its periods")
    waited = sum(comm.waited for comm in scene.comms)
    total = sum(comm.seconds for comm in scene.comms)
    if total and waited > 0.5 * total:
        share = round(100 * waited / total)
        notes.append(f"{share} % of the time in collectives is waiting for other ranks, estimated")
    if scene.ground.links.machine is None:
        notes.append(
            f"{scene.ground.trace.device or 'the device'} is not in the catalogue: links unknown"
        )
    return notes


def errors_of(replays: Sequence[Replay]) -> tuple[float, float]:
    """Give the median and the largest error of some replays."""
    found = [abs(each.error) for each in replays]
    return float(np.median(found)), max(found)
