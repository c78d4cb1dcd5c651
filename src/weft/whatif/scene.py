"""A replayed step and what there is to change in it: collectives, and kernels beside them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from weft.timeline.intervals import IntervalSet
from weft.trace import communication
from weft.trace.align import align
from weft.trace.kernel_slowdown import slowdowns
from weft.trace.machine_links import links_of
from weft.trace.steps import steps_of
from weft.trace.waiting import moving
from weft.whatif.replay import iterations_of, machine_of, ready_steps, replays_of
from weft.whatif.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weft.hardware import Platform
    from weft.trace import Trace
    from weft.trace import TracedCollective as Recorded
    from weft.trace.align import AlignedJob, RankTrace
    from weft.trace.machine_links import MachineLinks
    from weft.trace.waiting import TransferWindow
    from weft.whatif.calls import Floats
    from weft.whatif.recorded import Recording
    from weft.whatif.replay import Ready, Replay
    from weft.whatif.stage import Run


@dataclass(frozen=True, slots=True)
class Comm:
    """One collective of the step: its call, what it is, its seconds and those that moved bytes."""

    call: int
    what: Recorded
    seconds: float
    moved: float

    @property
    def waited(self) -> float:
        """Seconds in which it waited for other ranks."""
        return self.seconds - self.moved


@dataclass(frozen=True)
class Ground:
    """A recorded step on a machine, and what is found of it once, whatever is changed in it."""

    trace: Trace
    ready: Ready
    machine: Platform

    @cached_property
    def stage(self) -> Stage:
        """The step as a schedule."""
        return Stage([self.ready.recording], self.machine, iterations_of(self.ready))

    @cached_property
    def run(self) -> Run:
        """The step unchanged, simulated."""
        return self.stage.run()

    @cached_property
    def links(self) -> MachineLinks:
        """What the links of the traced machine can do."""
        return links_of(self.trace.device)

    @cached_property
    def slowdown(self) -> float | None:
        """How many times as long kernels took beside collectives, if the trace shows it."""
        steps, is_comm = steps_of(self.trace), communication(self.trace)
        rows = self.trace.gpu[is_comm]
        cover = IntervalSet.of(self.trace.columns.start[rows], self.trace.end[rows])
        found = [each.weighted for each in slowdowns(self.trace, steps, is_comm, cover)]
        return max(1.0, *found) if found else None


@dataclass(frozen=True)
class Scene:
    """What may be changed in a step: some of its collectives, and kernels beside them."""

    ground: Ground
    replays: tuple[Replay, ...]
    comms: tuple[Comm, ...]

    @property
    def recording(self) -> Recording:
        """The step itself."""
        return self.ground.ready.recording

    @property
    def streams(self) -> frozenset[str]:
        """The streams that only collectives run on."""
        calls, numbers = self.recording.calls, set(self.recording.collectives)
        others = {int(calls.stream[n]) for n in calls.launches.tolist() if n not in numbers}
        mine = {int(calls.stream[comm.call]) for comm in self.comms}
        return frozenset(str(stream) for stream in mine - others)

    @cached_property
    def beside(self) -> Floats:
        """By call, the share of its work that runs while bytes move."""
        run, rows = self.ground.run, self.ground.stage.rows[0][-1]
        calls = self.recording.calls
        share = np.zeros(len(calls))
        numbers = [comm.call for comm in self.comms if comm.moved > 0]
        if not numbers:
            return share
        end = run.end[rows[numbers]]
        begin = end - np.array([comm.moved for comm in self.comms if comm.moved > 0])
        others = np.setdiff1d(calls.launches, [comm.call for comm in self.comms])
        for number in others.tolist():
            start, stop = run.start[rows[number]], run.end[rows[number]]
            over = np.minimum(stop, end) - np.maximum(start, begin)
            share[number] = min(1.0, float(np.maximum(over, 0).sum()) / max(stop - start, 1e-12))
        return share

    def with_moved(self, moved: Callable[[Comm], float], compute: float = 1.0) -> Recording:
        """Give the step with other times of moving, and of kernels while bytes move."""
        seconds = self.recording.seconds.copy()
        if compute != 1.0:
            seconds *= 1 + self.beside * (compute - 1)
        for comm in self.comms:
            seconds[comm.call] = comm.waited + moved(comm)
        return replace(self.recording, seconds=seconds)

    @cached_property
    def if_all_moved(self) -> Scene:
        """The same scene as if no collective had waited for another rank."""
        comms = tuple(replace(comm, moved=comm.seconds) for comm in self.comms)
        return replace(self, comms=comms)


def typical(steps: Sequence[Ready]) -> int:
    """Return the number of the step that is nearest the mean: its period and its collectives.

    What a change saves depends on how long collectives take, which varies with who is late.
    """
    about = np.array([(each.measured, _communicates(each.recording)) for each in steps])
    mean = about.mean(axis=0)
    apart = np.abs(about - mean) / np.where(mean > 0, mean, 1.0)
    return int(apart.sum(axis=1).argmin())


def _communicates(recording: Recording) -> float:
    """Return how long the collectives of a step take, in sum."""
    calls = [call for call in recording.collectives if recording.calls.row[call] >= 0]
    return float(recording.seconds[calls].sum())


def scene_of(ranked: RankTrace, moved: Mapping[Recorded, float] | None = None) -> Scene:
    """Replay the steps of one rank's trace and prepare the typical one.

    ``moved`` says how long collectives moved bytes, where several ranks tell; else it is estimated.
    """
    trace, machine = ranked.trace, machine_of(ranked.trace)
    steps = ready_steps(ranked)
    replays = tuple(replays_of(steps, machine))
    ready = steps[typical(steps)]
    moved = _moved(ranked) if moved is None else moved
    comms = [
        Comm(number, what, (own := float(ready.recording.seconds[number])), min(own, moved[what]))
        for number, what in sorted(ready.recording.collectives.items())
        if ready.recording.calls.row[number] >= 0
    ]
    return Scene(Ground(trace, ready, machine), replays, tuple(comms))


def _moved(ranked: RankTrace) -> dict[Recorded, float]:
    """Find how long each collective moved bytes; one of which nothing tells moved all the time."""
    steps = steps_of(ranked.trace)
    (found,) = moving(align([ranked]), [steps], links_of(ranked.trace.device))
    return _seconds(ranked, found)


def _seconds(ranked: RankTrace, found: Sequence[TransferWindow | None]) -> dict[Recorded, float]:
    seconds = (np.inf if each is None else each.seconds for each in found)
    return dict(zip(ranked.collectives, seconds, strict=True))


def slowest_scene(job: AlignedJob) -> Scene:
    """Prepare the rank of a job whose steps take longest, with what all ranks tell of moving."""
    steps = [steps_of(ranked.trace) for ranked in job.ranks]
    found = moving(job, steps, links_of(job.ranks[0].trace.device))
    scenes = [
        scene_of(ranked, _seconds(ranked, mine))
        for ranked, mine in zip(job.ranks, found, strict=True)
    ]
    return max(scenes, key=lambda scene: fmean(each.measured for each in scene.replays))
