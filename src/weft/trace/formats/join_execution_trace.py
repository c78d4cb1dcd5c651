"""Joins an execution trace with the Kineto trace of the same rank: shapes and times.

Both are written by one process and number its record functions. Newer profilers write that number;
for older files the operators of a thread are matched in order, by name.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from weft.trace.formats.graph import Graph, GraphNode
from weft.trace.trace import EventKind, Trace

_AHEAD = 16  # operators that one of the two may lack
_FEWEST = 0.5  # fraction of a thread's operators that must match


def is_same_rank(trace: Trace, graph: Graph) -> bool:
    """Return whether both are of one process."""
    pids = {pid for pid, _ in trace.threads}
    return graph.pid is not None and str(graph.pid) in pids


def joined(trace: Trace, graph: Graph) -> Trace:
    """Return the trace with the operator arguments that only the graph has."""
    pairs = dict(_pairs(trace, graph))
    details, column = list(trace.details), trace.columns.detail.copy()
    known: dict[bytes, int] = {}
    for row, index in pairs.items():
        more = graph.nodes[index].arguments
        have = trace.detail_of(row)
        if not more or more.keys() <= have.keys():
            continue
        text = msgspec.json.encode({**more, **have})
        column[row] = known.setdefault(text, len(details) + len(known))
    columns = replace(trace.columns, detail=column)
    nodes = np.full(len(trace), -1, np.int32)
    nodes[list(pairs)] = list(pairs.values())
    about = {**trace.about, "graph": graph.path, "graph_schema": graph.schema}
    return replace(
        trace, columns=columns, details=(*details, *known), about=about, graph=graph, nodes=nodes
    )


def _pairs(trace: Trace, graph: Graph) -> Iterator[tuple[int, int]]:
    """Yield rows of operators with the index of their node."""
    kind = trace.columns.kind
    rows = np.flatnonzero((kind == EventKind.OP) | (kind == EventKind.ANNOTATION))
    numbered = rows[trace.columns.function[rows] > 0]
    if len(numbered) > len(rows) // 2:
        by_number = {node.function: i for i, node in enumerate(graph.nodes) if node.function > 0}
        for row in numbered.tolist():
            index = by_number.get(int(trace.columns.function[row]))
            if index is not None and graph.nodes[index].name == trace.name_of(row):
                yield row, index
        return
    yield from _by_order(trace, rows, graph)


def _by_order(trace: Trace, rows: np.ndarray, graph: Graph) -> Iterator[tuple[int, int]]:
    theirs: dict[int, list[int]] = defaultdict(list)
    for index, node in sorted(enumerate(graph.nodes), key=lambda each: each[1].function):
        if not node.name.startswith("["):  # process and thread are nodes too
            theirs[node.lane].append(index)
    # record functions are numbered in start order; the clocks of old files are too coarse
    keys = (-trace.columns.duration[rows], trace.columns.start[rows], trace.columns.external[rows])
    order = rows[np.lexsort(keys)]
    for thread in np.unique(trace.columns.thread[order]).tolist():
        mine = order[trace.columns.thread[order] == thread].tolist()
        found = [_in_step(trace, mine, graph.nodes, each) for each in theirs.values()]
        best = max(found, key=len, default=[])
        if len(best) >= _FEWEST * len(mine):
            yield from best


def _in_step(
    trace: Trace, rows: Sequence[int], nodes: Sequence[GraphNode], indices: Sequence[int]
) -> list[tuple[int, int]]:
    """Match two lists in order; at a mismatch, skip to where names agree again."""
    out, i, j = list[tuple[int, int]](), 0, 0
    mine = [trace.name_of(row) for row in rows]
    theirs = [nodes[index].name for index in indices]
    while i < len(rows) and j < len(indices):
        skip = next(_skips(mine[i : i + _AHEAD], theirs[j : j + _AHEAD]), None)
        if skip is None:
            i, j = i + 1, j + 1
            continue
        i, j = i + skip[0], j + skip[1]
        out.append((rows[i], indices[j]))
        i, j = i + 1, j + 1
    return out


def _skips(mine: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield how many to skip on both sides until names agree, the fewest first."""
    for total in range(len(mine) + len(theirs) - 1):
        for here in range(max(0, total - len(theirs) + 1), min(total, len(mine) - 1) + 1):
            if mine[here] == theirs[total - here]:
                yield here, total - here
