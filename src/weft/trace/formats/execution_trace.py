"""PyTorch execution traces, as written by ExecutionTraceObserver, schemas 1.0.x to 1.1.x.

Nodes have shapes and types of their inputs, and their parents, but no times. From 1.0.2 on they
store inputs in one object and the rest in a list of attributes; 1.1 adds the sizes of collectives.

``join`` gives the Kineto trace of the same rank the shapes of its execution trace. Both are written
by one process and number its record functions. Newer profilers write that number; for older files
the operators of a thread are matched in order, by name.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from weft.errors import FormatError
from weft.trace.formats.file_pieces import FilePieces
from weft.trace.formats.graph import DAMAGED, Graph, GraphNode
from weft.trace.tensors import list_of
from weft.trace.trace import EventKind, Trace, whole_number
from weft.units import digits, file_name

# Attributes of schema 1.1 by their profiler names.
_COLLECTIVE = {
    "collective_name": "Collective name",
    "in_msg_nelems": "In msg nelems",
    "out_msg_nelems": "Out msg nelems",
    "dtype": "dtype",
    "pg_size": "Group size",
    "pg_name": "Process Group Name",
    "pg_desc": "Process Group Description",
}


def read_execution_trace(path: Path | str) -> Graph:
    """Read one rank's graph."""
    pieces = FilePieces(Path(path))
    text = b"".join(pieces)
    try:
        whole = msgspec.json.decode(text)
        nodes = tuple(_node(each) for each in whole["nodes"])
    except DAMAGED as error:
        lost = f"; {pieces.lost}" if pieces.lost else ""
        raise FormatError(
            f"{str(path)!r} is not a complete execution trace: {error}{lost}",
            "Write it again: call unregister_callback() of ExecutionTraceObserver first.",
        ) from None
    pid = whole.get("pid")
    return Graph(
        path=file_name(path),
        format="execution trace",
        schema=str(whole.get("schema", "")),
        nodes=nodes,
        pid=pid if isinstance(pid, int) else None,
    )


def _node(raw: dict[str, Any]) -> GraphNode:
    attributes = {each["name"]: each.get("value") for each in raw.get("attrs", ())}
    inputs = raw.get("inputs")
    if isinstance(inputs, dict):
        shapes, types = inputs.get("shapes"), inputs.get("types")
    else:
        attributes |= raw
        shapes, types = raw.get("input_shapes"), raw.get("input_types")
    values = [inputs.get("values") if isinstance(inputs, dict) else inputs]
    outputs = raw.get("outputs")
    results = outputs.get("values") if isinstance(outputs, dict) else outputs
    tensors = [*_tensors([values, results])]
    parent = raw.get("ctrl_deps", raw.get("parent"))
    arguments: dict[str, Any] = {
        name: _number(attributes[key]) for key, name in _COLLECTIVE.items() if key in attributes
    }
    arguments |= {"Input Dims": list_of(shapes), "Input type": _types(types)}
    return GraphNode(
        id=int(raw["id"]),
        name=str(raw["name"]),
        parent=parent if isinstance(parent, int) else None,
        lane=whole_number(attributes.get("tid")) or 0,
        function=whole_number(attributes.get("rf_id")) or -1,
        arguments=arguments,
        storages=tuple(dict.fromkeys(each[1] for each in tensors)),
        devices=tuple(dict.fromkeys(str(each[5]) for each in tensors)),
        written=sum(each[3] * each[4] for each in _tensors(results)),
    )


def _tensors(value: Any) -> Iterator[list[Any]]:
    """Yield the tensors among values: id, storage, offset, elements, bytes of each, device."""
    if not isinstance(value, list):
        return
    if len(value) == 6 and isinstance(value[5], str) and all(type(n) is int for n in value[:5]):
        yield value
        return
    for each in value:
        yield from _tensors(each)


def _types(types: Any) -> list[str]:
    """Convert types to the profiler's form: ``Tensor(float)`` is ``float``."""
    return [each[7:-1] if each.startswith("Tensor(") else each for each in map(str, list_of(types))]


def _number(value: Any) -> Any:
    found = digits(value) if isinstance(value, str) else None
    return value if found is None else found


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
