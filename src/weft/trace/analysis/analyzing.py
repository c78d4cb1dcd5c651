"""Analyzes trace files. The numbers are defined in ``analysis_result.py``."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import NamedTuple

import numpy as np

from weft.trace.analysis.align import AlignedJob, RankTrace
from weft.trace.analysis.analysis_result import (
    ESTIMATED,
    Analysis,
    CollectiveUse,
    RankAnalysis,
    StepAdvice,
    StepAnalysis,
    Straggler,
    counted_steps,
)
from weft.trace.analysis.machine_links import MachineLinks, bus_bandwidth, device_of, links_of
from weft.trace.analysis.rank_digest import (
    AT_ONCE,
    Progress,
    RankDigest,
    aligned_digests,
    digest_in_memory,
    digests_of,
)
from weft.trace.analysis.steps import BACKLOG, steps_of
from weft.trace.analysis.time_splits import TimeSplits
from weft.trace.analysis.trace_advice import first_of, losses
from weft.trace.analysis.waiting import TransferWindow, basis_of, measured, moving, stragglers
from weft.trace.formats.reading import jobs_of, read_traces
from weft.trace.formats.trace_files import trace_files
from weft.trace.trace import Trace
from weft.trace.trace_collectives import with_host_collectives
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


def analyze(
    paths: str | FilePath | Iterable[str | FilePath],
    advise: Advisor = bounds,
    *,
    on: str = "",
    progress: Progress | None = None,
) -> Analysis:
    """Read the traces of a job, one per rank, and analyze where its time goes.

    ``paths`` are files, folders, globs or zip archives; ``on`` is the machine of traces that name
    no device. More than 16 files are streamed: their events are not kept. Gains of advice are
    bounds here; ``weft.analyze`` replays the job to measure them.
    """
    files, device = trace_files(paths), device_of(on) if on else ""
    if len(files) > AT_ONCE:
        digests, skipped = digests_of(files, device, progress)
        jobs, apart = aligned_digests(digests)
        parts = [analyze_digests(job, mine, windows) for job, mine, windows in jobs]
        return _analysis(parts, _without_replay, [*skipped, *apart])
    found = read_traces(files, device)
    traces = [with_host_collectives(trace) for trace in found.traces]
    return analyze_traces(traces, advise, found.skipped)


def analyze_traces(
    traces: Sequence[Trace], advise: Advisor = bounds, notes: Sequence[str] = ()
) -> Analysis:
    """Analyze traces that have been read already."""
    jobs, apart = jobs_of(traces)
    return _analysis([_analyze_job(job) for job in jobs], advise, [*notes, *apart])


def _without_replay(found: JobAnalysis) -> Sequence[StepAdvice]:
    doubt = f"traces of more than {AT_ONCE} ranks are not replayed"
    return [replace(each, doubt=doubt) for each in bounds(found)]


def _analysis(parts: Sequence[JobAnalysis], advise: Advisor, notes: Sequence[str]) -> Analysis:
    advice = [advise(part) for part in parts]
    found = [_analysis_of(part, mine) for part, mine in zip(parts, advice, strict=True)]
    if len(found) == 1:
        return replace(found[0], notes=(*notes, *found[0].notes))
    return Analysis(
        ranks=tuple(rank for each in found for rank in each.ranks),
        world_size=None,
        aligned_within=None,
        stragglers=tuple(late for each in found for late in each.stragglers),
        advice=first_of([each for mine in advice for each in mine]),
        notes=(*notes, *(f"{each.name}: {note}" for each in found for note in each.notes)),
        jobs=tuple(found),
    )


def _analysis_of(found: JobAnalysis, advice: Sequence[StepAdvice]) -> Analysis:
    sizes = {rank.trace.world_size for rank in found.ranks}
    return Analysis(
        ranks=found.ranks,
        world_size=sizes.pop() if len(sizes) == 1 else None,
        aligned_within=found.job.within,
        stragglers=found.stragglers,
        advice=first_of(advice),
        notes=(*found.job.notes, *_apart(found.job), *_missing(found.job)),
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
        return [f"{ranks} recorded: waiting and moving times are estimates"]
    return [f"{ranks}: a missing rank may have been the last, so moving is at most what is shown"]


def _analyze_job(job: AlignedJob) -> JobAnalysis:
    steps = [steps_of(ranked.trace) for ranked in job.ranks]
    windows = moving(job, steps, links_of(job.ranks[0].trace.device))
    digests = [
        digest_in_memory(ranked, own, moved)
        for ranked, own, moved in zip(job.ranks, steps, windows, strict=True)
    ]
    return analyze_digests(job, digests, windows)


def analyze_digests(
    job: AlignedJob,
    digests: Sequence[RankDigest],
    windows: Sequence[Sequence[TransferWindow | None]],
) -> JobAnalysis:
    """Analyze the ranks of a job from their digests, on one clock, and when their bytes moved."""
    links = links_of(job.ranks[0].trace.device)
    ranks = tuple(
        _analyze_rank(ranked, digest, moved, links)
        for ranked, digest, moved in zip(job.ranks, digests, windows, strict=True)
    )
    late = stragglers(job, [each.events.busy for each in digests]) if len(ranks) > 1 else ()
    return JobAnalysis(job, ranks, late)


def _analyze_rank(
    ranked: RankTrace,
    digest: RankDigest,
    moved: Sequence[TransferWindow | None],
    links: MachineLinks,
) -> RankAnalysis:
    events, steps, details = digest.events, digest.steps, digest.details
    splits = TimeSplits(events, moved, digest.places)
    num_steps = len(steps.marks)
    by_step = splits.by(np.where(steps.of >= 0, steps.of, num_steps), num_steps + 1)
    made = tuple(
        StepAnalysis(mark.name, mark.start, mark.wall, period, split, inside)
        for mark, period, split, inside in zip(
            steps.marks, steps.periods, by_step, splits.inside(steps.windows()), strict=False
        )
    )
    backlog = splits.by(np.where(steps.of == BACKLOG, 0, 1), 2)[0]
    uses = _uses(ranked, digest, moved, links)
    return RankAnalysis(
        trace=ranked.trace,
        span=events.span,
        total=splits.by(np.zeros(len(events.start), np.int64), 1)[0],
        backlog=backlog if backlog.num_gpu_events else None,
        steps=made,
        steps_found=steps.found,
        collectives=uses,
        slowdowns=details.slowdowns,
        idle=details.idle,
        idle_under=details.idle_under,
        step_idle=details.step_idle,
        step_preparing=details.step_preparing,
        step_launching=details.step_launching,
        kernels=details.kernels,
        kernel_table=details.kernel_table,
        path=details.path,
        basis=basis_of(moved),
        notes=(*details.notes, *_stumbled(made), *_doubts(uses, links)),
    )


def _stumbled(steps: Sequence[StepAnalysis]) -> Iterator[str]:
    timed = sum(step.period is not None for step in steps) or len(steps)
    left = timed - len(counted_steps(steps))
    if left > 0:
        yield f"{left} of {timed} steps took over ten times the median: means leave them out"


def _doubts(uses: Sequence[CollectiveUse], links: MachineLinks) -> Iterator[str]:
    """Yield notes on estimates whose links no collective of the file came close to."""
    groups: dict[tuple[str, int | None], list[CollectiveUse]] = defaultdict(list)
    for use in uses:
        if use.basis == ESTIMATED and use.link and use.nbytes:
            groups[use.kind, use.nbytes].append(use)
    slow: list[str] = []
    for (kind, nbytes), found in groups.items():
        best = min(found, key=lambda use: use.seconds)
        alone = links.seconds(kind, nbytes, best.num_ranks, best.dtype, best.ranks)
        if len(found) >= 3 and alone and best.exposed > 0 and best.seconds > _FAR * alone:
            times = f"{best.seconds / alone:.0f}"
            slow.append(f"{kind} of {format_size(nbytes or 0)} {times} times as long")
    if slow:
        yield (
            f"even the fastest collectives of a size took longer than the links of {links.name} "
            f"need ({', '.join(slow)}): this rank waits for others in every step, or the job ran "
            "on slower links"
        )


def _uses(
    ranked: RankTrace,
    digest: RankDigest,
    moved: Sequence[TransferWindow | None],
    links: MachineLinks,
) -> tuple[CollectiveUse, ...]:
    """Return the collectives of a rank."""
    trace, found, events = ranked.trace, ranked.collectives, digest.events
    start, end = events.start[digest.places], events.end[digest.places]
    exposed = (end - start) - events.other.within(start, end)
    step_of = digest.steps.of[digest.places]
    out = []
    for index, (c, each) in enumerate(zip(found, moved, strict=True)):
        seconds = float(end[index] - start[index])
        moves = None if each is None else min(each.seconds, seconds)
        alone = links.seconds(c.kind, c.nbytes, c.num_ranks, c.dtype, c.ranks)
        use = CollectiveUse(
            kind=c.kind or "unknown",
            name=trace.name_of(c.row),
            nbytes=c.nbytes,
            dtype=c.dtype,
            group=c.group,
            num_ranks=c.num_ranks,
            step=int(step_of[index]),
            start=float(start[index]),
            seconds=seconds,
            exposed=float(exposed[index]),
            waiting=None if moves is None else seconds - moves,
            moving=moves,
            busbw=bus_bandwidth(c.kind, c.nbytes, c.num_ranks, moves),
            link=bus_bandwidth(c.kind, c.nbytes, c.num_ranks, alone),
            basis="unknown" if each is None else each.basis,
            last_rank=None if each is None else each.last_rank,
            ranks=c.ranks,
        )
        out.append(use)
    return tuple(out)
