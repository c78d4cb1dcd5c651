"""Analyzes trace files. The definitions of its numbers are in ``weft.trace.analysis``."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from statistics import median
from typing import NamedTuple

import numpy as np

from weft.errors import UsageError
from weft.timeline.intervals import GroupedIntervals, IntervalSet, overlap_by_group
from weft.trace.align import AlignedJob
from weft.trace.analysis import (
    ESTIMATED,
    Analysis,
    CollectiveUse,
    RankAnalysis,
    StepAdvice,
    StepAnalysis,
    Straggler,
    TimeSplit,
    counted_steps,
)
from weft.trace.idle import idle_of
from weft.trace.kernel_families import families
from weft.trace.kernel_slowdown import slowdowns
from weft.trace.machine_links import MachineLinks, bus_bandwidth, links_of
from weft.trace.reading import jobs_of, read_joined
from weft.trace.step_critical_path import critical_path
from weft.trace.steps import BACKLOG, TraceSteps, step_by_row, steps_of
from weft.trace.stragglers import stragglers
from weft.trace.trace import Bools, Floats, Ints, Trace
from weft.trace.trace_advice import first_of, losses
from weft.trace.trace_collectives import communication
from weft.trace.waiting import TransferWindow, basis_of, measured, moving
from weft.units import format_size, format_time

_NOISE = 1e-9  # relative to a sum of seconds
_FAR = 3.0  # times the estimate of the links: beyond this the estimate is doubtful


class JobAnalysis(NamedTuple):
    """One of the jobs found among some traces."""

    job: AlignedJob
    ranks: tuple[RankAnalysis, ...]
    stragglers: tuple[Straggler, ...]


Advisor = Callable[[JobAnalysis], Sequence[StepAdvice]]


def bounds(found: JobAnalysis) -> Sequence[StepAdvice]:
    """Return advice for a job from its losses, without a replay: every gain is a bound."""
    return [loss.advice for loss in losses(found.ranks, found.stragglers)]


def analyze(paths: str | FilePath | Iterable[str | FilePath], advise: Advisor = bounds) -> Analysis:
    """Read the traces of a job, one file per rank, and analyze where its time goes.

    Gains of advice are bounds here; ``weft.analyze`` replays the job to measure them.
    """
    found = [paths] if isinstance(paths, str | FilePath) else list(paths)
    if not found:
        raise UsageError("paths: no trace files", "Name the files: weft analyze rank*.json.gz")
    return analyze_traces(read_joined(found), advise)


def analyze_traces(traces: Sequence[Trace], advise: Advisor = bounds) -> Analysis:
    """Analyze traces that have been read already."""
    jobs, notes = jobs_of(traces)
    parts = [_analyze_job(job) for job in jobs]
    ranks = tuple(rank for part in parts for rank in part.ranks)
    first = jobs[0]
    sizes = {rank.trace.world_size for rank in ranks}
    return Analysis(
        ranks=ranks,
        world_size=sizes.pop() if len(sizes) == 1 else None,
        aligned_within=first.within,
        stragglers=tuple(late for part in parts for late in part.stragglers),
        advice=first_of([advice for part in parts for advice in advise(part)]),
        notes=(
            *notes,
            *(note for job in jobs for note in (*job.notes, *_apart(job))),
            *_missing(first),
        ),
    )


def _apart(job: AlignedJob) -> list[str]:
    """Return a note if the clocks of ranks are too far apart to separate waiting from moving."""
    unknown = [match for match in job.matches if measured(job, match) is None]
    if not unknown:
        return []
    doubt = format_time(max(job.uncertainty(match) for match in unknown))
    where = f"in {len(unknown)} of {len(job.matches)} matching collectives"
    what = "the split of waiting and moving is unknown"
    return [f"clocks of the ranks agree only within {doubt}: {where} {what}"]


def _missing(job: AlignedJob) -> list[str]:
    size, have = job.ranks[0].trace.world_size, len(job.ranks)
    if not size or size <= have or not any(ranked.collectives for ranked in job.ranks):
        return []
    ranks = f"{have} of {size} ranks"
    if have == 1:
        return [f"{ranks}: what is waiting and what is moving is estimated, not seen"]
    return [f"{ranks}: a missing rank may have been the last, so moving is at most what is shown"]


def _analyze_job(job: AlignedJob) -> JobAnalysis:
    steps = [steps_of(ranked.trace) for ranked in job.ranks]
    links = links_of(job.ranks[0].trace.device)
    moved = moving(job, steps, links)
    sides = [_Sides.of(ranked.trace) for ranked in job.ranks]
    ranks = tuple(
        _analyze_rank(job, number, sides[number], steps[number], moved[number], links)
        for number in range(len(job.ranks))
    )
    late = stragglers(job, [side.busy for side in sides]) if len(ranks) > 1 else ()
    return JobAnalysis(job, ranks, late)


@dataclass(frozen=True, slots=True)
class _Sides:
    """The GPU events of a rank in two classes: communication, and everything else."""

    is_comm: Bools  # in the order of trace.gpu
    start: Floats
    end: Floats
    comm: IntervalSet
    other: IntervalSet
    busy: IntervalSet

    @classmethod
    def of(cls, trace: Trace) -> "_Sides":
        start, end = trace.columns.start[trace.gpu], trace.end[trace.gpu]
        is_comm = communication(trace)
        comm = IntervalSet.of(start[is_comm], end[is_comm])
        other = IntervalSet.of(start[~is_comm], end[~is_comm])
        return cls(is_comm, start, end, comm, other, comm | other)


def _analyze_rank(
    job: AlignedJob,
    number: int,
    sides: _Sides,
    steps: TraceSteps,
    moved: Sequence[TransferWindow | None],
    links: MachineLinks,
) -> RankAnalysis:
    ranked = job.ranks[number]
    trace = ranked.trace
    splits = _Splits(trace, sides, moved, [c.row for c in ranked.collectives])
    num_steps = len(steps.marks)
    by_step = splits.by(np.where(steps.of >= 0, steps.of, num_steps), num_steps + 1)
    windows = steps.windows()
    made = tuple(
        StepAnalysis(mark.name, mark.start, mark.wall, period, split, inside)
        for mark, period, split, inside in zip(
            steps.marks, steps.periods, by_step, splits.inside(windows), strict=False
        )
    )
    counted = [window for n in counted_steps(made) if (window := windows[n]) is not None]
    backlog = splits.by(np.where(steps.of == BACKLOG, 0, 1), 2)[0]
    uses = _uses(job, number, sides, steps, moved, links)
    by_row = {c.row: m for c, m in zip(ranked.collectives, moved, strict=True)}
    typical = _typical(steps)
    idle = idle_of(trace, sides.busy, steps)
    mean = idle
    if counted:
        mean = idle_of(trace, sides.busy, steps, counted).each(len(counted))
    return RankAnalysis(
        trace=trace,
        span=float(sides.end.max() - sides.start.min()) if len(sides.start) else 0.0,
        total=splits.by(np.zeros(len(trace.gpu), np.int64), 1)[0],
        backlog=backlog if backlog.num_gpu_events else None,
        steps=made,
        steps_found=steps.found,
        collectives=uses,
        slowdowns=slowdowns(trace, steps, sides.is_comm, sides.comm),
        idle=idle.reasons,
        idle_under=idle.under,
        step_idle=mean.reasons,
        step_preparing=mean.preparing,
        step_launching=mean.launching,
        kernels=families(trace, sides.is_comm, counted),
        path=critical_path(trace, steps, typical, by_row) if typical is not None else None,
        basis=basis_of(moved),
        notes=(*_notes(trace, steps, sides), *_stumbled(made), *_doubts(uses, links)),
    )


def _stumbled(steps: Sequence[StepAnalysis]) -> Iterator[str]:
    timed = sum(step.period is not None for step in steps) or len(steps)
    left = timed - len(counted_steps(steps))
    if left > 0:
        yield f"{left} of {timed} steps took over ten times the median: means leave them out"


def _typical(steps: TraceSteps) -> int | None:
    """Return the index of the step with the median duration."""
    times = [
        mark.wall if period is None else period
        for mark, period in zip(steps.marks, steps.periods, strict=True)
    ]
    if not times:
        return None
    middle = median(times)
    return min(range(len(times)), key=lambda number: abs(times[number] - middle))


def _notes(trace: Trace, steps: TraceSteps, sides: _Sides) -> list[str]:
    out = []
    if not len(trace.gpu):
        out.append("no GPU event in this file: was ProfilerActivity.CUDA asked for?")
    elif not sides.is_comm.any():
        out.append("no communication in this file")
    if steps.found:
        out.append("no profiler steps: these were found by how kernels repeat")
    elif not steps.marks and len(trace.gpu):
        out.append("no profiler steps, and kernels do not repeat: only totals are given")
    if len(np.unique(trace.columns.device[trace.gpu])) > 1:
        out.append("several GPUs in one file: their events are taken together")
    return out


def _doubts(uses: Sequence[CollectiveUse], links: MachineLinks) -> Iterator[str]:
    """Yield notes on estimates whose links no collective of the file came close to."""
    groups: dict[tuple[str, int | None], list[CollectiveUse]] = defaultdict(list)
    for use in uses:
        if use.basis == ESTIMATED and use.link and use.nbytes:
            groups[use.kind, use.nbytes].append(use)
    for (kind, nbytes), found in groups.items():
        best = min(found, key=lambda use: use.seconds)
        alone = links.seconds(kind, nbytes, best.num_ranks, best.dtype)
        if len(found) >= 3 and alone and best.exposed > 0 and best.seconds > _FAR * alone:
            yield (
                f"even the quickest of {len(found)} {kind} of {format_size(nbytes or 0)} took "
                f"{best.seconds / alone:.0f} times what the links of {links.name} need: every step "
                "waits for others, or the links are slower than those"
            )


class _Splits:
    """Computes how groups of GPU events spend their time, for all groups in one sweep."""

    def __init__(
        self,
        trace: Trace,
        sides: _Sides,
        moved: Sequence[TransferWindow | None],
        rows: Sequence[int],
    ) -> None:
        self.trace, self.sides = trace, sides
        place = np.full(len(trace), -1, np.int64)
        place[trace.gpu] = np.arange(len(trace.gpu))
        known = [(row, each) for row, each in zip(rows, moved, strict=True) if each is not None]
        dark = [row for row, each in zip(rows, moved, strict=True) if each is None]
        self.dark = place[dark].astype(np.int64)  # collectives whose transfer times are unknown
        self.moved = place[[row for row, _ in known]].astype(np.int64)
        first = np.array([each.start for _, each in known], float)
        last = np.array([each.end for _, each in known], float)
        self.first = np.clip(first, sides.start[self.moved], sides.end[self.moved])
        self.last = np.clip(last, self.first, sides.end[self.moved])

    def by(self, group: Ints, num_groups: int) -> list[TimeSplit]:
        """Return the time split of groups of GPU events."""
        sides, is_comm = self.sides, self.sides.is_comm
        return self._splits(
            GroupedIntervals(group[is_comm], sides.start[is_comm], sides.end[is_comm]),
            GroupedIntervals(group[~is_comm], sides.start[~is_comm], sides.end[~is_comm]),
            GroupedIntervals(group[self.moved], self.first, self.last),
            group[self.dark],
            num_groups,
        )

    def inside(self, windows: Sequence[tuple[float, float] | None]) -> list[TimeSplit | None]:
        """Return the time split of windows, from all GPU events clipped to them."""
        sides, is_comm = self.sides, self.sides.is_comm
        found = [(n, window) for n, window in enumerate(windows) if window is not None]
        out: list[TimeSplit | None] = [None] * len(windows)
        if not found:
            return out
        edges = [window for _, window in found]
        splits = self._splits(
            _clipped(sides.start[is_comm], sides.end[is_comm], edges),
            _clipped(sides.start[~is_comm], sides.end[~is_comm], edges),
            _clipped(self.first, self.last, edges),
            _clipped(sides.start[self.dark], sides.end[self.dark], edges).group,
            len(found),
        )
        for (number, _), split in zip(found, splits, strict=True):
            out[number] = split
        return out

    def _splits(
        self,
        comm: GroupedIntervals,
        other: GroupedIntervals,
        moves: GroupedIntervals,
        dark: Ints,
        num_groups: int,
    ) -> list[TimeSplit]:
        all_of = overlap_by_group(comm, other, num_groups)
        moved = overlap_by_group(moves, other, num_groups)
        group = np.concatenate((comm.group, other.group))
        count = np.bincount(group, minlength=num_groups)
        unknown = np.bincount(dark, minlength=num_groups) > 0
        return [
            self._split(*map(float, each), known=not odd)
            for *each, odd in zip(count, *all_of, moved.first, moved.both, unknown, strict=True)
        ]

    def _split(
        self,
        count: float,
        exposed: float,
        compute: float,
        both: float,
        open_: float,
        hidden: float,
        *,
        known: bool,
    ) -> TimeSplit:
        comm = exposed + both
        known = known or not comm
        return TimeSplit(
            num_gpu_events=int(count),
            busy=exposed + compute + both,
            compute=compute + both,
            communication=comm,
            exposed=exposed,
            waiting=_rest(comm, open_ + hidden) if known else None,
            moving=open_ + hidden if known else None,
            exposed_waiting=_rest(exposed, open_) if known else None,
            exposed_moving=open_ if known else None,
        )


def _rest(whole: float, part: float) -> float:
    """Return whole minus part, with rounding errors set to zero."""
    left = whole - part
    return left if left > _NOISE * whole else 0.0


def _clipped(
    start: Floats, end: Floats, windows: Sequence[tuple[float, float]]
) -> GroupedIntervals:
    """Clip intervals to windows; the group of a piece is the index of its window."""
    groups, starts, ends = [np.empty(0, np.int64)], [np.empty(0)], [np.empty(0)]
    for number, (first, last) in enumerate(windows):
        mine = np.flatnonzero((start < last) & (end > first))
        groups.append(np.full(len(mine), number))
        starts.append(np.maximum(start[mine], first))
        ends.append(np.minimum(end[mine], last))
    return GroupedIntervals(np.concatenate(groups), np.concatenate(starts), np.concatenate(ends))


def _uses(
    job: AlignedJob,
    number: int,
    sides: _Sides,
    steps: TraceSteps,
    moved: Sequence[TransferWindow | None],
    links: MachineLinks,
) -> tuple[CollectiveUse, ...]:
    """Return the collectives of a rank."""
    trace, found = job.ranks[number].trace, job.ranks[number].collectives
    rows = np.array([c.row for c in found], np.int64)
    start, end = trace.columns.start[rows], trace.end[rows]
    exposed = (end - start) - sides.other.within(start, end)
    step_of = step_by_row(trace, steps)
    out = []
    for index, (c, each) in enumerate(zip(found, moved, strict=True)):
        seconds = float(end[index] - start[index])
        moves = None if each is None else min(each.seconds, seconds)
        alone = links.seconds(c.kind, c.nbytes, c.num_ranks, c.dtype)
        use = CollectiveUse(
            kind=c.kind or "unknown",
            name=trace.name_of(c.row),
            nbytes=c.nbytes,
            dtype=c.dtype,
            group=c.group,
            num_ranks=c.num_ranks,
            step=int(step_of[c.row]),
            start=float(start[index]),
            seconds=seconds,
            exposed=float(exposed[index]),
            waiting=None if moves is None else seconds - moves,
            moving=moves,
            busbw=bus_bandwidth(c.kind, c.nbytes, c.num_ranks, moves),
            link=bus_bandwidth(c.kind, c.nbytes, c.num_ranks, alone),
            basis="unknown" if each is None else each.basis,
            last_rank=None if each is None else each.last_rank,
        )
        out.append(use)
    return tuple(out)
