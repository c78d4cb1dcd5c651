"""Chakra: MLCommons' execution graphs of a rank, as Protocol Buffers or as JSON.

The binary form is a sequence of length-delimited messages: one of metadata, then one per node.
Field numbers are those of Chakra's schema 0.0.4. Messages are parsed here, without the library of
Protocol Buffers: a message is a sequence of fields, each a varint with the field's number and its
wire type, followed by a varint (0), eight bytes (1), a varint and that many bytes (2), or four (5).
"""

import struct
from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Any

import msgspec

from weft.errors import FormatError
from weft.trace.formats.file_pieces import FilePieces
from weft.trace.formats.graph import DAMAGED, Graph, GraphNode
from weft.trace.trace import whole_number
from weft.units import file_name

_COLLECTIVE_NODE = 7
_KINDS = (
    *("all_reduce", "reduce", "all_gather", "gather", "scatter", "broadcast", "all_to_all"),
    *("reduce_scatter", "reduce_scatter_block", "barrier"),
)
_STRUCTS = {3: "<d", 5: "<f"}
_SIGN = 1 << 63


def read_chakra(path: Path | str) -> Graph:
    """Read the binary form; incomplete messages of a truncated file are skipped."""
    pieces = FilePieces(Path(path))
    data = b"".join(pieces)
    messages, used = _messages(data)
    try:
        about = _attributes(messages[0]) if messages else {}
        nodes = tuple(_node(message) for message in messages[1:])
    except (FormatError, struct.error, *DAMAGED) as error:
        raise FormatError(
            f"{str(path)!r} is neither JSON nor SQLite, and not a Chakra trace: {error}",
            "Give a trace of torch.profiler, rocprofv3, Nsight Systems or Chakra.",
        ) from None
    if not nodes:
        raise FormatError(
            f"{str(path)!r}: unknown trace format",
            "weft reads Kineto, execution traces, Chakra, rocprofv3 and flight-recorder JSON, and "
            "Nsight Systems (.sqlite).",
        )
    lost = f"{pieces.lost or 'the file is truncated'}: kept {len(nodes)} complete nodes"
    return Graph(
        path=file_name(path),
        format="chakra",
        schema=str(about.get("schema", "")),
        nodes=nodes,
        pid=about.get("pid"),
        losses=(lost,) if pieces.lost or used < len(data) else (),
    )


def _messages(data: bytes) -> tuple[list[bytes], int]:
    """Return the complete messages, and the offset after the last of them."""
    out, place = [], 0
    while place < len(data):
        try:
            size, begin = varint(data, place)
        except FormatError:
            break
        if begin + size > len(data):
            break
        out.append(data[begin : begin + size])
        place = begin + size
    return out, place


def _node(message: bytes) -> GraphNode:
    found: dict[int, list[Any]] = {}
    for number, value in fields(message):
        found.setdefault(number, []).append(value)
    attributes = dict(_attribute(each) for each in found.get(10, ()))
    is_gpu = attributes.get("is_cpu_op") is False or attributes.get("is_cpu_op") == 0
    seconds = found[7][0] * 1e-6 if 7 in found else None
    return GraphNode(
        id=found[1][0] if 1 in found else 0,
        name=found[2][0].decode(errors="replace") if 2 in found else "",
        needs=tuple(n for key in (4, 5) for each in found.get(key, ()) for n in varints(each)),
        is_gpu=is_gpu,
        seconds=0.0 if seconds is None and is_gpu else seconds,
        start_us=float(found[6][0]) if 6 in found else None,
        lane=whole_number(attributes.get("tid")) or 0,
        function=whole_number(attributes.get("rf_id")) or -1,
        arguments=_arguments(attributes, found.get(8)),
    )


def _arguments(attributes: dict[str, Any], inputs: list[Any] | None) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if inputs:
        parts = dict(fields(inputs[0]))
        out = {"Input Dims": _literal(parts.get(2)), "Input type": _types(_literal(parts.get(3)))}
    work = {"Operations": attributes.get("num_ops"), "Bytes": attributes.get("tensor_size")}
    out |= {key: value for key, value in work.items() if isinstance(value, int)}
    kind, size = attributes.get("comm_type"), attributes.get("comm_size")
    if isinstance(kind, int) and 0 <= kind < len(_KINDS) and isinstance(size, int):
        sizes = {"In msg nelems": size, "Out msg nelems": size, "dtype": "Byte"}
        out |= {"Collective name": _KINDS[kind], **sizes}
    return out


def _literal(raw: bytes | None) -> list[Any]:
    """Parse a list as printed by Python, which except for its quotes is mostly JSON."""
    if not raw:
        return []
    try:
        value = msgspec.json.decode(raw.replace(b"'", b'"'))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _types(types: list[Any]) -> list[str]:
    return [str(t).removeprefix("Tensor(").removesuffix(")") for t in types]


def _attributes(message: bytes) -> dict[str, Any]:
    return dict(_attribute(value) for number, value in fields(message) if number == 2)


def _attribute(message: bytes) -> tuple[str, Any]:
    name, value = "", None
    for number, each in fields(message):
        if number == 1:
            name = each.decode(errors="replace")
        elif number in _STRUCTS and isinstance(each, bytes):
            value = struct.unpack(_STRUCTS[number], each)[0]
        elif number == 27:
            value = bool(each)
        elif number == 29:
            value = each.decode(errors="replace")
        elif isinstance(each, int):
            value = each - 2 * _SIGN if each >= _SIGN else each
    return name, value


def read_chakra_json(path: Path | str) -> Graph:
    """Read the JSON form: ``workload_graph``, or a list of nodes as the converter prints them."""
    pieces = FilePieces(Path(path))
    try:
        whole = msgspec.json.decode(b"".join(pieces))
        raw = whole["workload_graph"] if isinstance(whole, dict) else whole
        nodes = tuple(_json_node(each) for each in raw)
    except DAMAGED as error:
        lost = f"; {pieces.lost}" if pieces.lost else ""
        raise FormatError(f"{str(path)!r} is not a Chakra graph: {error}{lost}") from None
    return Graph(path=file_name(path), format="chakra", schema="json", nodes=nodes)


def _json_node(raw: dict[str, Any]) -> GraphNode:
    low = {str(key).lower().replace("_", ""): value for key, value in raw.items()}
    micros = _micros(low.get("runtime", low.get("durationmicros")))
    seconds = None if micros is None else micros * 1e-6
    is_gpu = not low.get("iscpuop", low.get("nodetype") != _COLLECTIVE_NODE)
    return GraphNode(
        id=int(low["id"]),
        name=str(low["name"]),
        needs=tuple(int(n) for n in (*low.get("datadeps", ()), *low.get("ctrldeps", ()))),
        is_gpu=is_gpu,
        seconds=0.0 if seconds is None and is_gpu else seconds,
        start_us=_micros(low.get("starttimemicros")),
        lane=whole_number(low.get("nodetype")) or 0 if is_gpu else 0,
    )


def _micros(value: Any) -> float | None:
    if value is None:
        return None
    if not 0 <= float(value) < inf:
        raise ValueError(f"{value} is not a time")
    return float(value)


_CUT = "a message ends before its last field does"


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and the value of every field: an integer, or bytes.

    >>> list(fields(bytes([0x08, 0x96, 0x01, 0x12, 0x02, 0x68, 0x69])))
    [(1, 150), (2, b'hi')]
    """
    place = 0
    while place < len(data):
        key, place = varint(data, place)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            value, place = varint(data, place)
            yield number, value
        elif wire_type in _FIXED or wire_type == 2:
            size, place = (_FIXED[wire_type], place) if wire_type in _FIXED else varint(data, place)
            if place + size > len(data):
                raise FormatError(_CUT)
            yield number, data[place : place + size]
            place += size
        else:
            raise FormatError(f"invalid Protocol Buffers wire type {wire_type} at byte {place}")


_FIXED = {1: 8, 5: 4}


def varint(data: bytes, place: int) -> tuple[int, int]:
    """Return a varint and the offset after it."""
    value = shift = 0
    while place < len(data):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise FormatError(f"the varint at byte {place} has more than 64 bits")
    raise FormatError(_CUT)


def varints(data: int | bytes) -> list[int]:
    """Return a repeated integer, packed or not."""
    if isinstance(data, int):
        return [data]
    out, place = [], 0
    while place < len(data):
        value, place = varint(data, place)
        out.append(value)
    return out
