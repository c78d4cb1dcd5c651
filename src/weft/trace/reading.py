"""Reads trace files of any format, and groups them into jobs on one clock."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from weft.errors import FormatError
from weft.trace.align import AlignedJob, RankTrace, align, is_one_job
from weft.trace.chakra import read_chakra, read_chakra_json
from weft.trace.execution_trace import read_execution_trace
from weft.trace.file_pieces import head_of
from weft.trace.graph import Graph
from weft.trace.join_execution_trace import is_same_rank, joined
from weft.trace.kineto import read_kineto
from weft.trace.rocprof import read_rocprof
from weft.trace.trace import Trace

_KEYS = re.compile(rb'"(traceEvents|nodes|rocprofiler-sdk-tool|workload_graph)"\s*:')
_GRAPHS = {b"nodes": read_execution_trace, b"workload_graph": read_chakra_json}


def read(path: Path | str) -> Trace:
    """Read one rank's trace of any format; a graph is converted to a trace if possible."""
    found = read_any(path)
    return found.to_trace() if isinstance(found, Graph) else found


def read_any(path: Path | str) -> Trace | Graph:
    """Read a file in the format that its first bytes indicate."""
    head = head_of(Path(path))
    if not head.strip():
        raise FormatError(
            f"{str(path)!r} is empty", "Write it again: the profiler writes when it is stopped."
        )
    if head.lstrip()[:1] not in (b"{", b"["):
        return read_chakra(path)
    key = _KEYS.search(head)
    if key and key[1] in _GRAPHS:
        return _GRAPHS[key[1]](path)
    return read_rocprof(path) if key and key[1] == b"rocprofiler-sdk-tool" else read_kineto(path)


def read_joined(paths: Iterable[Path | str]) -> list[Trace]:
    """Read files; an execution trace is joined with the Kineto trace of the same process."""
    found = [read_any(path) for path in paths]
    traces = [each for each in found if isinstance(each, Trace)]
    for graph in found:
        if not isinstance(graph, Graph):
            continue
        same = [i for i, trace in enumerate(traces) if is_same_rank(trace, graph)]
        if same:
            traces[same[0]] = joined(traces[same[0]], graph)
        else:
            traces.append(graph.to_trace())
    return traces


def jobs_of(traces: Sequence[Trace]) -> tuple[list[AlignedJob], list[str]]:
    """Group traces into jobs, in order of rank and on one clock; also return notes."""
    once, notes = _without_copies(traces)
    ranked = [RankTrace.of(trace) for trace in once]
    groups: list[list[RankTrace]] = []
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


def _fits(group: Sequence[RankTrace], each: RankTrace) -> bool:
    """Return whether a trace is another rank of the job of a group."""
    rank, ranks = each.trace.rank, {other.trace.rank for other in group}
    return rank is not None and rank not in ranks and is_one_job(group[0], each)


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
