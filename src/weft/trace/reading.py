"""Files of any format as Traces, and the traces of one job on one clock."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from weft.trace.align import Job, Ranked, align, is_one_job
from weft.trace.collectives import collectives
from weft.trace.kineto import read_kineto
from weft.trace.trace import Trace


def read(path: Path | str) -> Trace:
    """Read one rank's trace."""
    return read_kineto(path)


def read_all(paths: Iterable[Path | str]) -> list[Trace]:
    """Read the traces of several ranks, on the clock of the first of their job."""
    jobs, _ = jobs_of([read(path) for path in paths])
    return [ranked.trace for job in jobs for ranked in job.ranks]


def jobs_of(traces: Sequence[Trace]) -> tuple[list[Job], list[str]]:
    """Sort traces into jobs, each in order of rank and on one clock; say what was odd."""
    once, notes = _without_copies(traces)
    ranked = [Ranked(trace, collectives(trace)) for trace in once]
    groups: list[list[Ranked]] = []
    for each in sorted(ranked, key=lambda r: (r.trace.rank is None, r.trace.rank or 0)):
        fitting = [group for group in groups if _fits(group, each)]
        if fitting:
            fitting[0].append(each)
        else:
            groups.append([each])
    if len(groups) > 1:
        notes.append(
            f"{len(once)} files of {len(groups)} different jobs: each was analysed by itself"
        )
    return [align(group) for group in groups], notes


def _fits(group: Sequence[Ranked], each: Ranked) -> bool:
    """Whether a trace is another rank of the job of a group."""
    ranks = {other.trace.rank for other in group}
    return each.trace.rank is not None and each.trace.rank not in ranks and is_one_job(group[0], each)


def _without_copies(traces: Sequence[Trace]) -> tuple[list[Trace], list[str]]:
    """Leave out files that say the same as one before them."""
    seen: dict[object, str] = {}
    once, notes = [], []
    for trace in traces:
        columns = trace.columns
        same = (trace.rank, trace.origin_ns, trace.num_events, columns.duration.tobytes())
        if same in seen:
            notes.append(f"{trace.path} is a copy of {seen[same]} and was left out")
        else:
            seen[same] = trace.path
            once.append(trace)
    return once, notes
