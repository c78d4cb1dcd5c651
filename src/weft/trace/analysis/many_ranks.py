"""Analyzes more ranks than fit into memory: one process per core reads files and keeps digests.

Traces of a thousand ranks are tens of gigabytes, what a job's analysis needs of them are a few
hundred megabytes. The processes read a file, reduce it to a RankDigest and drop it.
"""

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace

import numpy as np

from weft.errors import FormatError, WeftError
from weft.trace.analysis.align import AlignedJob, align
from weft.trace.analysis.host_collectives import with_host_collectives
from weft.trace.analysis.machine_links import links_of
from weft.trace.analysis.rank_digest import RankDigest, digest_of
from weft.trace.analysis.waiting import TransferWindow, moving
from weft.trace.formats.graph import Graph
from weft.trace.formats.reading import groups_of, read_file
from weft.trace.formats.trace_files import TraceFile

AT_ONCE = 16  # files that are analysed with all their events in memory
_AHEAD = 2  # files per process that may wait for it

Progress = Callable[[int, int], None]
Windows = list[list[TransferWindow | None]]


def digests_of(
    files: Sequence[TraceFile], device: str = "", progress: Progress | None = None
) -> tuple[list[RankDigest], list[str]]:
    """Reduce files to digests on all cores; also return why files were skipped."""
    found: dict[int, list[RankDigest]] = {}
    skipped: dict[int, str] = {}
    for count, (number, digests, note) in enumerate(_each(files, device), start=1):
        found[number] = digests
        if note:
            skipped[number] = note
        if progress is not None:
            progress(count, len(files))
    notes = [skipped[number] for number in sorted(skipped)]
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


def _each(files: Sequence[TraceFile], device: str) -> Iterator[tuple[int, list[RankDigest], str]]:
    """Yield the digests of each file, or why there are none, in the order of completion."""
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, multiprocessing.get_context("forkserver")) as pool:
        waiting = iter(enumerate(files))
        open_: set[Future[tuple[int, list[RankDigest], str]]] = set()
        while True:
            while len(open_) < _AHEAD * cores and (file := next(waiting, None)) is not None:
                open_.add(pool.submit(_digests, *file, device))
            if not open_:
                return
            done, open_ = wait(open_, return_when=FIRST_COMPLETED)
            for each in done:
                yield each.result()


def _digests(number: int, file: TraceFile, device: str) -> tuple[int, list[RankDigest], str]:
    try:
        found = read_file(file, device)
        traces = [each.to_trace() if isinstance(each, Graph) else each for each in found]
        return number, [digest_of(with_host_collectives(trace)) for trace in traces], ""
    except WeftError as error:
        return number, [], f"skipped {file}: {error}"
