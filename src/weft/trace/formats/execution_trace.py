"""PyTorch execution traces, as written by ExecutionTraceObserver, schemas 1.0.x to 1.1.x.

Nodes have shapes and types of their inputs, and their parents, but no times. From 1.0.2 on they
store inputs in one object and the rest in a list of attributes; 1.1 adds the sizes of collectives.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from weft.errors import FormatError
from weft.trace.formats.file_pieces import FilePieces
from weft.trace.formats.graph import DAMAGED, Graph, GraphNode
from weft.trace.trace import whole_number
from weft.units import file_name

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
    arguments |= {"Input Dims": _list(shapes), "Input type": _types(types)}
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
    return [each[7:-1] if each.startswith("Tensor(") else each for each in map(str, _list(types))]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.isdecimal() else value
