"""Several ranks of one job replayed together: who waits for whom comes out of the simulation.

Collectives that all traces have are joined. Each takes as long as bytes moved in it, from the last
start to the first end; the waiting before is not put in, so that what the simulation says of it
can be held against what the traces show.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import FormatError
from weft.trace.machine_links import links_of
from weft.trace.reading import jobs_of
from weft.trace.steps import steps_of
from weft.trace.waiting import moving
from weft.whatif.replay import Replay, machine_of, ready_steps
from weft.whatif.stage import ITERATIONS, Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.hardware import Platform
    from weft.trace import Trace
    from weft.trace.align import AlignedJob
    from weft.whatif.calls import Floats
    from weft.whatif.recorded import Recording
    from weft.whatif.replay import Ready
    from weft.whatif.stage import Run


_HELPS = 0.1  # of what a rank is late by: what brings it less is not what made it late


@dataclass(frozen=True)
class Together:
    """The same step of several ranks. ``calls`` are their joined collectives, rank by rank."""

    traces: tuple[Trace, ...]
    ready: tuple[Ready, ...]
    recordings: tuple[Recording, ...]
    machine: Platform
    calls: tuple[tuple[int, ...], ...]
    waited: Floats  # by rank and collective, as the traces show it
    means: tuple[float, ...]  # by rank, the mean period of its steps

    @property
    def iterations(self) -> int:
        """One where one step was recorded: it begins as it did then."""
        return ITERATIONS if all(each.held_out for each in self.ready) else 1

    @cached_property
    def stage(self) -> Stage:
        """All ranks as one schedule."""
        return Stage(self.recordings, self.machine, self.iterations)

    def run(self, recordings: Sequence[Recording] | None = None) -> Run:
        """Simulate; other recordings may have other hosts too."""
        if recordings is None:
            return self.stage.run()
        return Stage(recordings, self.machine, self.iterations).run()

    def waits(self, run: Run) -> Floats:
        """Give by rank and collective how long it waited for the others in a run."""
        return self._arrived_and_met(run)[1]

    def arrivals(self, run: Run) -> Floats:
        """Give by rank and collective when it was there in a run."""
        return self._arrived_and_met(run)[0]

    def _arrived_and_met(self, run: Run) -> tuple[Floats, Floats]:
        arrived, waited = [], []
        for rank, calls in enumerate(self.calls):
            rows = run.stage.rows[rank][-1][list(calls)] - 1  # the wait for the others
            arrived.append(run.start[rows])
            waited.append(run.end[rows] - run.start[rows])
        return np.array(arrived), np.array(waited)

    def replays(self, run: Run) -> tuple[Replay, ...]:
        """Give the step of each rank beside what was measured of it."""
        return tuple(
            Replay(
                f"rank {trace.rank}", each.measured, run.period(n), each.held_out, each.by_device
            )
            for n, (trace, each) in enumerate(zip(self.traces, self.ready, strict=True))
        )


def job_of(traces: Sequence[Trace]) -> AlignedJob:
    """Put the traces of one job on one clock; refuse those of several."""
    jobs, _ = jobs_of(traces)
    if len(jobs) != 1:
        raise FormatError(
            f"{len(traces)} traces are of {len(jobs)} jobs: their collectives do not match.",
            "Give the traces of one run, or one trace at a time.",
        )
    return jobs[0]


def together(job: AlignedJob) -> Together:
    """Join the traces of one job, at the step whose period is nearest the mean."""
    steps = [ready_steps(ranked) for ranked in job.ranks]
    ready = _same_step(steps)
    moved = _moved(job)
    joined = _joined(job, ready, moved)
    first = min(each.recording.calls.mark.start for each in ready)
    recordings, calls = [], []
    for number, each in enumerate(ready):
        numbers = [joined[number][key] for key in sorted(joined[number])]
        recordings.append(_apart(each.recording, numbers, moved[number], first))
        calls.append(tuple(numbers))
    waited = _waited(ready, calls, moved)
    machine = machine_of(job.ranks[0].trace)
    ranks = tuple(ranked.trace for ranked in job.ranks)
    means = tuple(fmean(one.measured for one in each) for each in steps)
    return Together(ranks, ready, tuple(recordings), machine, tuple(calls), waited, means)


def _same_step(steps: Sequence[Sequence[Ready]]) -> tuple[Ready, ...]:
    """Choose by name the step that is nearest the mean of the slowest rank; else the middle one."""
    named = [{one.name: one for one in each} for each in steps]
    shared = [name for name in named[0] if all(name in each for each in named)]
    if not shared:
        return tuple(each[len(each) // 2] for each in steps)
    longest = {name: max(each[name].measured for each in named) for name in shared}
    mean = fmean(longest.values())
    chosen = min(shared, key=lambda name: abs(longest[name] - mean))
    return tuple(each[chosen] for each in named)


def _moved(job: AlignedJob) -> list[dict[int, float]]:
    """Give the seconds in which bytes moved, by rank and row of the kernel."""
    steps = [steps_of(ranked.trace) for ranked in job.ranks]
    found = moving(job, steps, links_of(job.ranks[0].trace.device))
    return [
        {c.row: m.seconds for c, m in zip(ranked.collectives, each, strict=True) if m is not None}
        for ranked, each in zip(job.ranks, found, strict=True)
    ]


def _joined(
    job: AlignedJob, ready: Sequence[Ready], moved: Sequence[dict[int, float]]
) -> list[dict[int, int]]:
    """Return by rank the call of each collective in the step of all of which moving is known."""
    places = [
        {row: call for call, row in enumerate(each.recording.calls.row.tolist()) if row >= 0}
        for each in ready
    ]
    found: list[dict[int, int]] = [{} for _ in ready]
    for key, match in enumerate(job.matches):
        rows = {n: job.ranks[n].collectives[i].row for n, i in match.members}
        everywhere = len(rows) == len(ready)
        if everywhere and all(row in places[n] and row in moved[n] for n, row in rows.items()):
            for number, row in rows.items():
                found[number][key] = places[number][row]
    order = sorted(found[0], key=lambda key: found[0][key]) if found else []
    return [{place: each[key] for place, key in enumerate(order)} for each in found]


def _apart(
    recording: Recording, numbers: list[int], moved: dict[int, float], first: float
) -> Recording:
    """Leave of joined collectives what moves; others stay as they were and meet nobody."""
    seconds = recording.seconds.copy()
    for number in numbers:
        seconds[number] = moved[int(recording.calls.row[number])]
    kept = {number: recording.collectives[number] for number in numbers}
    late = recording.calls.mark.start - first
    return replace(recording, seconds=seconds, collectives=kept, late=late)


def _waited(
    ready: Sequence[Ready], calls: Sequence[tuple[int, ...]], moved: Sequence[dict[int, float]]
) -> Floats:
    """Give what each rank waited: all its kernel took beyond moving."""
    out = []
    for each, numbers, known in zip(ready, calls, moved, strict=True):
        own = each.recording.seconds
        rows = each.recording.calls.row
        out.append([max(0.0, own[n] - known[int(rows[n])]) for n in numbers])
    return np.array(out)


def straggler(job: Together, run: Run) -> int:
    """Give the rank that the others wait for longest."""
    arrived = job.arrivals(run)
    order = np.sort(arrived, axis=0)
    cost = np.zeros(len(job.traces))
    np.add.at(cost, arrived.argmax(axis=0), order[-1] - order[-2] if len(order) > 1 else 0.0)
    return int(cost.argmax())


def without_straggler(job: Together, rank: int) -> tuple[Recording, ...]:
    """Let a rank come to each collective no later than the last of the others.

    What it is late by is taken from its host, where that took longest since the collective before,
    and what that does not help from its kernels, all by the same share.
    """
    recordings = list(job.recordings)
    for place in range(len(job.calls[rank])):
        late = _lateness(job, recordings, rank, place)
        since = job.calls[rank][place - 1] if place else -1
        for take in (_sooner, _shorter):
            if late <= 0:
                break
            tried = recordings.copy()
            tried[rank] = take(recordings[rank], since, job.calls[rank][place], late)
            left = _lateness(job, tried, rank, place)
            if left < (1 - _HELPS) * late:
                recordings, late = tried, left
    return tuple(recordings)


def _lateness(job: Together, recordings: Sequence[Recording], rank: int, place: int) -> float:
    """Return how long after the last of the others a rank comes to a collective."""
    arrived = job.arrivals(job.run(recordings))[:, place]
    return float(arrived[rank] - np.delete(arrived, rank).max())


def _shorter(recording: Recording, since: int, until: int, seconds: float) -> Recording:
    """Take seconds from the kernels between two collectives."""
    mine = recording.calls.launches
    mine = mine[(mine > since) & (mine < until)]
    mine = mine[~np.isin(mine, list(recording.collectives))]
    out = recording.seconds.copy()
    total = float(out[mine].sum())
    if total > 0:
        out[mine] *= max(0.0, 1 - seconds / total)
    return replace(recording, seconds=out)


def _sooner(recording: Recording, since: int, until: int, seconds: float) -> Recording:
    """Take seconds from the host between two calls, and from its late start before the first."""
    over = recording.overheads
    before, late, head = over.before.copy(), recording.late, over.head
    if since < 0:
        late, seconds = max(0.0, late - seconds), max(0.0, seconds - late)
        head, seconds = max(0.0, head - seconds), max(0.0, seconds - head)
    for number in (since + 1 + np.argsort(-before[since + 1 : until + 1])).tolist():
        taken = min(seconds, before[number])
        before[number] -= taken
        seconds -= taken
    return replace(recording, overheads=replace(over, before=before, head=head), late=late)
