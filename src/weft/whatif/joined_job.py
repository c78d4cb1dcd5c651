"""Several ranks of one job replayed together: the simulation tells which rank waits for which.

Collectives that all traces have are joined. Each takes as long as bytes moved in it, from the last
start to the first end; the waiting before is not put in, so that what the simulation says of it
can be compared with what the traces show.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from weft.errors import FormatError
from weft.step import StepRun
from weft.trace import Trace
from weft.trace.analysis.align import AlignedJob
from weft.trace.analysis.machine_links import links_of
from weft.trace.analysis.steps import steps_of
from weft.trace.analysis.waiting import moving
from weft.trace.formats.reading import jobs_of
from weft.trace.recorded.calls import Floats
from weft.trace.recorded.costs import costs_of
from weft.trace.recorded.recorded_step import RecordedStep
from weft.whatif.model import ReplayModel
from weft.whatif.replay import (
    Replay,
    machine_of,
    rank_periods,
    recorded_steps,
    replay_engine,
)

_HELPS = 0.1  # of what a rank is late by: what brings it less is not what made it late


@dataclass(frozen=True)
class JobReplay:
    """The same step of several ranks. ``calls`` are their joined collectives, rank by rank."""

    model: ReplayModel
    calls: tuple[tuple[int, ...], ...]
    waited: Floats  # by rank and collective, as the traces show it
    means: tuple[float, ...]  # by rank, the mean period of its steps

    def run(self, ranks: Sequence[RecordedStep] | None = None) -> StepRun:
        """Replay what was recorded, or ranks with other hosts and durations."""
        return replay_engine(ranks or self.model.ranks, self.model.machine).run(pressure=0)

    def waits(self, run: StepRun) -> Floats:
        """Return by rank and collective how long it waited for the others in a run."""
        rows = self._meetings(run)
        return np.array([run.row_end[each] - run.row_start[each] for each in rows])

    def arrivals(self, run: StepRun) -> Floats:
        """Return by rank and collective when it was there in a run."""
        return np.array([run.row_start[each] for each in self._meetings(run)])

    def _meetings(self, run: StepRun) -> list[list[int]]:
        """Return the rows in which each rank waits for the others, in the last iteration."""
        found = []
        for rank, calls in enumerate(self.calls):
            ops = run.engine.graph.steps[rank].ops
            mine = [n for n, op in enumerate(ops) if op.collective is not None][-len(calls) :]
            place = dict(zip(sorted(calls), mine, strict=True))
            launch = run.engine.layout.launch_row
            found.append([launch[rank, place[call]] - 1 for call in calls])
        return found


def job_of(traces: Sequence[Trace]) -> AlignedJob:
    """Put the traces of one job on one clock; refuse those of several."""
    jobs, _ = jobs_of(traces)
    if len(jobs) != 1:
        raise FormatError(
            f"{len(traces)} traces are of {len(jobs)} jobs: their collectives do not match.",
            "Give the traces of one run, or one trace at a time.",
        )
    return jobs[0]


def job_replay(job: AlignedJob) -> JobReplay:
    """Join the traces of one job, at the step whose period is nearest the mean."""
    steps = [recorded_steps(ranked) for ranked in job.ranks]
    chosen = _same_step(steps)
    moved = _moved(job)
    joined = _joined(job, chosen, moved)
    first = min(each.calls.mark.start for each in chosen)
    ranks, calls = [], []
    for number, each in enumerate(chosen):
        numbers = [joined[number][key] for key in sorted(joined[number])]
        costs = costs_of(job.ranks[number].trace, each.calls)
        ranks.append(replace(_apart(each, numbers, moved[number], first), costs=costs))
        calls.append(tuple(numbers))
    machine = machine_of(job.ranks[0].trace)
    links = links_of(job.ranks[0].trace.device)
    traces = tuple(ranked.trace for ranked in job.ranks)
    periods = rank_periods(replay_engine(ranks, machine).run(pressure=0))
    replays = tuple(
        Replay(f"rank {trace.rank}", each.measured, period, each.held_out, each.by_device)
        for trace, each, period in zip(traces, ranks, periods, strict=True)
    )
    model = ReplayModel(traces, tuple(ranks), machine, links, replays)
    means = tuple(fmean(one.measured for one in each) for each in steps)
    return JobReplay(model, tuple(calls), _waited(chosen, calls, moved), means)


def _same_step(steps: Sequence[Sequence[RecordedStep]]) -> tuple[RecordedStep, ...]:
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
    """Return the seconds in which bytes moved, by rank and row of the kernel."""
    steps = [steps_of(ranked.trace) for ranked in job.ranks]
    found = moving(job, steps, links_of(job.ranks[0].trace.device))
    return [
        {c.row: m.seconds for c, m in zip(ranked.collectives, each, strict=True) if m is not None}
        for ranked, each in zip(job.ranks, found, strict=True)
    ]


def _joined(
    job: AlignedJob, ready: Sequence[RecordedStep], moved: Sequence[dict[int, float]]
) -> list[dict[int, int]]:
    """Return by rank the call of each collective in the step of all of which moving is known."""
    places = [
        {row: call for call, row in enumerate(each.calls.row.tolist()) if row >= 0}
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
    return [{index: each[key] for index, key in enumerate(order)} for each in found]


def _apart(
    recording: RecordedStep, numbers: list[int], moved: dict[int, float], first: float
) -> RecordedStep:
    """Keep the moving part of joined collectives; others stay as they were and meet no rank."""
    seconds = recording.seconds.copy()
    for number in numbers:
        seconds[number] = moved[int(recording.calls.row[number])]
    kept = {number: recording.collectives[number] for number in numbers}
    late = recording.calls.mark.start - first
    return replace(recording, seconds=seconds, collectives=kept, late=late)


def _waited(
    chosen: Sequence[RecordedStep],
    calls: Sequence[tuple[int, ...]],
    moved: Sequence[dict[int, float]],
) -> Floats:
    """Return what each rank waited: all its kernel took beyond moving."""
    out = []
    for each, numbers, known in zip(chosen, calls, moved, strict=True):
        own = each.seconds
        rows = each.calls.row
        out.append([max(0.0, own[n] - known[int(rows[n])]) for n in numbers])
    return np.array(out)


def straggler(job: JobReplay, run: StepRun) -> int:
    """Return the rank that the others wait for longest."""
    arrived = job.arrivals(run)
    order = np.sort(arrived, axis=0)
    cost = np.zeros(len(job.model.ranks))
    np.add.at(cost, arrived.argmax(axis=0), order[-1] - order[-2] if len(order) > 1 else 0.0)
    return int(cost.argmax())


def without_straggler(job: JobReplay, rank: int) -> tuple[RecordedStep, ...]:
    """Bring a rank to each collective no later than the last of the others.

    What it is late by is taken from its host, where that took longest since the collective before,
    and what that does not help from its kernels, all by the same share.
    """
    recordings = list(job.model.ranks)
    for index in range(len(job.calls[rank])):
        late = _lateness(job, recordings, rank, index)
        since = job.calls[rank][index - 1] if index else -1
        for take in (_sooner, _shorter):
            if late <= 0:
                break
            tried = recordings.copy()
            tried[rank] = take(recordings[rank], since, job.calls[rank][index], late)
            left = _lateness(job, tried, rank, index)
            if left < (1 - _HELPS) * late:
                recordings, late = tried, left
    return tuple(recordings)


def _lateness(job: JobReplay, recordings: Sequence[RecordedStep], rank: int, place: int) -> float:
    """Return how long after the last of the others a rank comes to a collective."""
    arrived = job.arrivals(job.run(recordings))[:, place]
    return float(arrived[rank] - np.delete(arrived, rank).max())


def _shorter(recording: RecordedStep, since: int, until: int, seconds: float) -> RecordedStep:
    """Take seconds from the kernels between two collectives."""
    mine = recording.calls.launches
    mine = mine[(mine > since) & (mine < until)]
    mine = mine[~np.isin(mine, list(recording.collectives))]
    out = recording.seconds.copy()
    total = float(out[mine].sum())
    if total > 0:
        out[mine] *= max(0.0, 1 - seconds / total)
    return replace(recording, seconds=out)


def _sooner(recording: RecordedStep, since: int, until: int, seconds: float) -> RecordedStep:
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
