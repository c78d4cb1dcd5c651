"""What the analysis of a job needs of one rank: a small part of its trace.

::

    trace ── digest_of ──▶ RankDigest ──┐
    trace ── digest_of ──▶ RankDigest ──┼── align, moving ──▶ RankAnalysis of each rank
    (one process per file)       ..   ──┘

Everything that concerns a rank alone (idle time, kernels, critical path) is computed from its
trace. What concerns several ranks needs their collectives, and when their GPUs were busy: these are
the arrays of a digest. So the traces of many ranks need not be in memory at the same time: those of
a thousand ranks are tens of gigabytes, their digests a few hundred megabytes.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np

from weft.errors import FormatError, WeftError
from weft.trace.analysis.align import AlignedJob, ClockShift, RankTrace, align
from weft.trace.analysis.analysis_result import (
    CriticalPath,
    KernelSlowdown,
    KernelUse,
    TimePart,
    counted_times,
)
from weft.trace.analysis.idle import idle_of
from weft.trace.analysis.kernel_slowdown import slowdowns
from weft.trace.analysis.kernel_table import families, kernel_table
from weft.trace.analysis.machine_links import links_of
from weft.trace.analysis.step_critical_path import critical_path
from weft.trace.analysis.steps import TraceSteps, steps_of
from weft.trace.analysis.time_splits import GpuEvents
from weft.trace.analysis.waiting import TransferWindow, moving
from weft.trace.formats.execution_trace import is_same_rank, joined
from weft.trace.formats.graph import Graph
from weft.trace.formats.kineto import named_rank
from weft.trace.formats.reading import groups_of, is_graph, read_file
from weft.trace.formats.trace_files import TraceFile
from weft.trace.trace import PROFILER_STEP, Ints, StepMark, Trace, TraceColumns
from weft.trace.trace_collectives import with_host_collectives


@dataclass(frozen=True, slots=True)
class RankDetails:
    """The parts of a RankAnalysis that one trace tells without the others."""

    slowdowns: tuple[KernelSlowdown, ...]
    idle: tuple[TimePart, ...]
    idle_under: tuple[TimePart, ...]
    step_idle: tuple[TimePart, ...]
    step_preparing: tuple[TimePart, ...]
    step_launching: tuple[TimePart, ...]
    kernels: tuple[TimePart, ...]
    kernel_table: tuple[KernelUse, ...]
    path: CriticalPath | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RankDigest:
    """One rank: its collectives as a RankTrace, its GPU events, steps and details."""

    ranked: RankTrace
    events: GpuEvents
    steps: TraceSteps
    places: Ints  # of the collectives among the GPU events
    details: RankDetails

    def moved(self, shift: ClockShift) -> "RankDigest":
        """Return events and steps on another clock; ``ranked`` is moved by ``align``."""
        at, drift = shift.at_zero, shift.drift
        if not at and not drift:
            return self

        def then(time: float) -> float:
            return time * (1 + drift) + at

        steps = replace(
            self.steps,
            marks=tuple(
                StepMark(mark.name, then(mark.start), then(mark.start) + mark.wall)
                for mark in self.steps.marks
            ),
            begins=tuple(None if t is None else then(t) for t in self.steps.begins),
        )
        return replace(self, events=self.events.moved(at, drift), steps=steps)


def digest_of(trace: Trace) -> RankDigest:
    """Reduce a trace to its digest; what waits is estimated where only other ranks can tell."""
    ranked, steps, events = RankTrace.of(trace), steps_of(trace), GpuEvents.of(trace)
    (windows,) = moving(align([ranked]), [steps], links_of(trace.device))
    details = details_of(ranked, events, steps, windows)
    places = places_of(ranked)
    small = replace(steps, of=steps.of.astype(np.int32))
    events = GpuEvents.of(trace)  # without the interval sets that were computed on the way
    return RankDigest(_without_rows(ranked, places), events, small, places, details)


def digest_in_memory(
    ranked: RankTrace, steps: TraceSteps, windows: Sequence[TransferWindow | None]
) -> RankDigest:
    """Build the digest of a trace that stays in memory, whose transfer windows are known."""
    events = GpuEvents.of(ranked.trace)
    details = details_of(ranked, events, steps, windows)
    return RankDigest(ranked, events, steps, places_of(ranked), details)


def places_of(ranked: RankTrace) -> Ints:
    """Return the indices of the collectives among the GPU events of their trace."""
    place = np.full(len(ranked.trace), -1, np.int64)
    place[ranked.trace.gpu] = np.arange(len(ranked.trace.gpu))
    return place[[c.row for c in ranked.collectives]].astype(np.int64)


def details_of(
    ranked: RankTrace,
    events: GpuEvents,
    steps: TraceSteps,
    windows: Sequence[TransferWindow | None],
) -> RankDetails:
    """Compute what a trace tells without those of other ranks."""
    trace = ranked.trace
    counted = _counted_windows(steps)
    idle = idle_of(trace, events.busy, steps)
    mean = idle
    if counted:
        mean = idle_of(trace, events.busy, steps, counted).each(len(counted))
    by_row = {c.row: m for c, m in zip(ranked.collectives, windows, strict=True)}
    typical = _typical(steps)
    return RankDetails(
        slowdowns=slowdowns(trace, steps, events.is_comm, events.comm),
        idle=idle.reasons,
        idle_under=idle.under,
        step_idle=mean.reasons,
        step_preparing=mean.preparing,
        step_launching=mean.launching,
        kernels=families(trace, events.is_comm, counted),
        kernel_table=kernel_table(trace, events.is_comm, counted),
        path=critical_path(trace, steps, typical, by_row) if typical is not None else None,
        notes=_notes(trace, steps, events),
    )


def _counted_windows(steps: TraceSteps) -> list[tuple[float, float]]:
    windows = steps.windows()
    counted = counted_times(steps.periods, [mark.wall for mark in steps.marks])
    return [window for n in counted if (window := windows[n]) is not None]


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


def _notes(trace: Trace, steps: TraceSteps, events: GpuEvents) -> tuple[str, ...]:
    out = []
    if not len(trace.gpu):
        out.append(
            "no GPU event in the part that could be read: profilers write them last"
            if trace.losses
            else "no GPU event in this file: was ProfilerActivity.CUDA asked for?"
        )
    elif not events.is_comm.any():
        out.append("no communication in this file")
    if steps.marks and not (steps.found or PROFILER_STEP.match(steps.marks[0].name)):
        out.append("no profiler steps: a step is a forward pass as the server marked it")
    if steps.found:
        out.append("no profiler steps: these were found by how kernels repeat")
    elif not steps.marks and len(trace.gpu):
        out.append("no profiler steps, and kernels do not repeat: only totals are given")
    if len(np.unique(trace.columns.device[trace.gpu])) > 1:
        out.append("several GPUs in one file: their events are taken together")
    return tuple(out)


def _without_rows(ranked: RankTrace, places: Ints) -> RankTrace:
    """Keep of a trace only the rows of its collectives, in the order of their start."""
    order = np.argsort(places, kind="stable")
    rows = np.array([c.row for c in ranked.collectives], np.int64)[order]
    columns = ranked.trace.columns
    kept = {key: getattr(columns, key)[rows] for key in TraceColumns.__dataclass_fields__}
    used, kept["name"] = np.unique(kept["name"], return_inverse=True)
    kept["name"] = kept["name"].astype(np.int32)
    kept["detail"] = np.full(len(rows), -1, np.int32)
    trace = replace(
        ranked.trace,
        columns=TraceColumns(**kept),
        names=tuple(ranked.trace.names[n] for n in used.tolist()),
        threads=(),
        details=(),
        graph=None,
        nodes=None,
        is_whole=False,
    )
    trace.__dict__["launch"] = ranked.trace.launch[rows]  # the calls themselves are left out
    place = {row: number for number, row in enumerate(rows.tolist())}
    found = tuple(replace(c, row=place[c.row], op=-1) for c in ranked.collectives)
    return RankTrace(trace, found)


def _without_path(digest: RankDigest) -> RankDigest:
    """Drop the rows of the critical path: they are those of events that are left out."""
    path = digest.details.path
    if path is None:
        return digest
    return replace(digest, details=replace(digest.details, path=replace(path, rows=())))


AT_ONCE = 16  # files that are analysed with all their events in memory
_AHEAD = 2  # files per process that may wait for it

Progress = Callable[[int, int], None]
Windows = list[list[TransferWindow | None]]


def digests_of(
    files: Sequence[TraceFile], device: str = "", progress: Progress | None = None
) -> tuple[list[RankDigest], list[str]]:
    """Reduce files to digests on all cores; also return why files were skipped."""
    found: dict[int, list[RankDigest]] = {}
    skipped: dict[int, list[str]] = {}
    groups, count = _by_rank(files), 0
    for number, digests, notes in _each(groups, device):
        found[number], skipped[number] = digests, notes
        count += len(groups[number])
        if progress is not None:
            progress(count, len(files))
    notes = [note for number in sorted(skipped) for note in skipped[number]]
    if not any(found.values()):
        raise FormatError(f"none of {len(files)} files is a trace; the first: {notes[0]}")
    return [digest for number in sorted(found) for digest in found[number]], notes


def aligned_digests(
    digests: Sequence[RankDigest],
) -> tuple[list[tuple[AlignedJob, list[RankDigest], Windows]], list[str]]:
    """Group digests into jobs on one clock, with the times at which bytes moved."""
    ranked = [each.ranked for each in digests]
    groups, notes = groups_of(ranked)
    out = []
    for group in groups:
        job = align([ranked[number] for number in group])
        mine = [
            digests[number].moved(shift) for number, shift in zip(group, job.shifts, strict=True)
        ]
        steps = [replace(each.steps, of=each.steps.of[np.sort(each.places)]) for each in mine]
        windows = moving(job, steps, links_of(job.ranks[0].trace.device))
        out.append((job, mine, windows))
    return out, notes


def _by_rank(files: Sequence[TraceFile]) -> list[list[TraceFile]]:
    """Group files by the rank in their names: a graph is read with the trace of its rank."""
    groups: dict[tuple[str, int], list[TraceFile]] = {}
    for number, file in enumerate(files):
        rank = named_rank(Path(str(file)).name)
        key = ("file", number) if rank is None else ("rank", rank)
        groups.setdefault(key, []).append(file)
    return list(groups.values())


_Digested = tuple[int, list[RankDigest], list[str]]


def _each(groups: Sequence[list[TraceFile]], device: str) -> Iterator[_Digested]:
    """Yield the digests of each group, and why files have none, in the order of completion."""
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, multiprocessing.get_context("forkserver")) as pool:
        waiting = iter(enumerate(groups))
        open_: set[Future[_Digested]] = set()
        while True:
            while len(open_) < _AHEAD * cores and (group := next(waiting, None)) is not None:
                open_.add(pool.submit(_digests, *group, device))
            if not open_:
                return
            done, open_ = wait(open_, return_when=FIRST_COMPLETED)
            for each in done:
                yield each.result()


def _digests(number: int, files: list[TraceFile], device: str) -> _Digested:
    """Digest one trace after another, each joined with the graph of its process."""
    graphs: list[Graph] = []
    out: list[RankDigest] = []
    notes = []

    def digest(trace: Trace) -> None:
        out.append(_without_path(digest_of(with_host_collectives(trace))))

    for file in sorted(files, key=_is_graph, reverse=True) if len(files) > 1 else files:
        try:
            for each in read_file(file, device):
                if isinstance(each, Graph) and not each.has_times:
                    graphs.append(each)
                    continue
                trace = each.to_trace() if isinstance(each, Graph) else each
                own = next((graph for graph in graphs if is_same_rank(trace, graph)), None)
                digest(trace if own is None else joined(trace, own))
                graphs = [graph for graph in graphs if graph is not own]
        except WeftError as error:
            notes.append(f"skipped {file}: {error}")
    for graph in graphs:  # whose trace is not there
        digest(graph.to_trace())
    return number, out, notes


def _is_graph(file: TraceFile) -> bool:
    try:
        with file.opened() as path:
            return is_graph(path)
    except WeftError:  # reading it will say why
        return False
