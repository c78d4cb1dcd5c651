"""Reads trace files of any format, and groups them into jobs on one clock."""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from weft.errors import FormatError, WeftError
from weft.trace.analysis.align import AlignedJob, RankTrace, align, is_one_job
from weft.trace.formats.chakra import read_chakra, read_chakra_json
from weft.trace.formats.execution_trace import is_same_rank, joined, read_execution_trace
from weft.trace.formats.file_pieces import head_of
from weft.trace.formats.flight_recorder import read_flight_recorder, refuse_pickle
from weft.trace.formats.graph import Graph
from weft.trace.formats.kineto import named_rank, read_kineto
from weft.trace.formats.nsight import SQLITE, read_nsight
from weft.trace.formats.rocprof import read_rocprof
from weft.trace.formats.trace_files import TraceFile
from weft.trace.trace import Trace


class JsonFormat(NamedTuple):
    """A trace format in JSON; one that ``is_graph`` has dependencies and may lack times."""

    read: Callable[[Path], Trace | Graph]
    is_graph: bool = False


# By the key that identifies it in the first bytes of a file: the first of these keys decides.
# Formats that are not JSON are told apart by their magic bytes in ``read_processes``.
JSON_FORMATS = {
    "traceEvents": JsonFormat(read_kineto),
    "nodes": JsonFormat(read_execution_trace, is_graph=True),
    "workload_graph": JsonFormat(read_chakra_json, is_graph=True),
    "rocprofiler-sdk-tool": JsonFormat(read_rocprof),
    "entries": JsonFormat(read_flight_recorder),
}
_KEYS = re.compile(rf'"({"|".join(map(re.escape, JSON_FORMATS))})"\s*:'.encode())
_PICKLE = re.compile(rb"\x80[\x02-\x05]")  # protocols 2 to 5


def read(path: Path | str) -> Trace:
    """Read one rank's trace of any format; a graph is converted to a trace if possible."""
    found = read_any(path)
    return found.to_trace() if isinstance(found, Graph) else found


def read_any(path: Path | str) -> Trace | Graph:
    """Read a file; of a report with several processes, the first one."""
    return read_processes(path)[0]


def read_processes(path: Path | str) -> list[Trace | Graph]:
    """Read a file in the format that its first bytes indicate; most hold one process."""
    head = head_of(Path(path))
    if not head.strip():
        raise FormatError(
            f"{str(path)!r} is empty", "Write it again: the profiler writes when it is stopped."
        )
    if head.startswith(SQLITE):
        return [*read_nsight(path)]
    if _PICKLE.match(head):
        raise refuse_pickle(path)
    if head.lstrip()[:1] not in (b"{", b"["):
        return [read_chakra(path)]
    return [(_json_format(head) or JSON_FORMATS["traceEvents"]).read(Path(path))]


def _json_format(head: bytes) -> JsonFormat | None:
    key = _KEYS.search(head)
    return JSON_FORMATS[key[1].decode()] if key else None


def is_graph(path: Path | str) -> bool:
    """Return whether the head of a file is that of a graph."""
    json_format = _json_format(head_of(Path(path)))
    known = json_format is not None and json_format.is_graph
    return known or str(path).endswith((".et", ".et.gz"))


def read_untimed(path: Path | str) -> Graph | None:
    """Read a graph without times; None for any other file, of which only the head is read."""
    if not is_graph(path):
        return None
    found = read_any(path)
    return found if isinstance(found, Graph) and not found.has_times else None


@dataclass(frozen=True, slots=True)
class TracesRead:
    """The traces of some files; ``skipped`` says why each of the other files was left out."""

    traces: list[Trace]
    skipped: list[str]


def read_traces(files: Sequence[TraceFile], device: str = "") -> TracesRead:
    """Read some files.

    A file that cannot be read is skipped if there are others. An execution trace is joined with the
    Kineto trace of the same process. ``device`` is that of traces which name none.
    """
    found: list[Trace | Graph] = []
    skipped: list[str] = []
    for file in files:
        try:
            found += read_file(file, device)
        except WeftError as error:
            if len(files) == 1:
                raise
            skipped.append(f"skipped {file}: {error}")
    if not found:
        raise FormatError(f"none of {len(files)} files is a trace; the first: {skipped[0]}")
    return TracesRead(_joined(found), skipped)


def read_file(file: TraceFile, device: str = "") -> list[Trace | Graph]:
    """Read one file or member of an archive."""
    with file.opened() as path:
        found = read_processes(path)
    named = [replace(each, path=str(file)) if file.member else each for each in found]
    return [
        replace(each, device=device)
        if isinstance(each, Trace) and device and not each.device
        else each
        for each in named
    ]


def _joined(found: Sequence[Trace | Graph]) -> list[Trace]:
    traces = [each for each in found if isinstance(each, Trace)]
    for graph in found:
        if not isinstance(graph, Graph):
            continue
        place = _place_of(graph, traces)
        if place is None:
            traces.append(graph.to_trace())
        else:
            traces[place] = joined(traces[place], graph)
    return traces


def _place_of(graph: Graph, traces: Sequence[Trace]) -> int | None:
    """Return the index of the trace of a graph's process, or None.

    Processes of different hosts or containers may have one number: then the rank in the name of
    the file decides, or the order of the files.
    """
    same = [i for i, trace in enumerate(traces) if is_same_rank(trace, graph)]
    rank = named_rank(Path(graph.path).name)
    named = [i for i in same if rank is not None and traces[i].rank == rank]
    alone = [i for i in same if traces[i].graph is None]
    return next(iter(named or alone or same), None)


def jobs_of(traces: Sequence[Trace]) -> tuple[list[AlignedJob], list[str]]:
    """Group traces into jobs, in order of rank and on one clock; also return notes."""
    once, notes = _without_copies(traces)
    ranked = [RankTrace.of(trace) for trace in once]
    groups, apart = groups_of(ranked)
    return [align([ranked[number] for number in group]) for group in groups], [*notes, *apart]


def groups_of(ranked: Sequence[RankTrace]) -> tuple[list[list[int]], list[str]]:
    """Return the indices of the ranks of each job, in order of rank; also return notes."""
    order = sorted(
        range(len(ranked)), key=lambda n: (ranked[n].trace.rank is None, ranked[n].trace.rank or 0)
    )
    groups: list[list[int]] = []
    known: list[set[int | None]] = []
    for number in order:
        rank = ranked[number].trace.rank
        for group, ranks in zip(groups, known, strict=True):
            new = rank is not None and rank not in ranks
            if new and is_one_job(ranked[group[0]], ranked[number]):
                group.append(number)
                ranks.add(rank)
                break
        else:
            groups.append([number])
            known.append({rank})
    notes = []
    if len(groups) > 1:
        notes.append(
            f"{len(ranked)} files of {len(groups)} different jobs: each was analysed by itself"
        )
    return groups, notes


def _without_copies(traces: Sequence[Trace]) -> tuple[list[Trace], list[str]]:
    """Drop files that duplicate an earlier one."""
    seen: dict[object, str] = {}
    once, notes = [], []
    for trace in traces:
        digest = hashlib.sha256(trace.columns.duration.data).digest()
        same = (trace.rank, trace.origin_ns, trace.num_events, digest)
        if same in seen:
            notes.append(f"skipped {trace.path}, a copy of {seen[same]}")
        else:
            seen[same] = trace.path
            once.append(trace)
    return once, notes
