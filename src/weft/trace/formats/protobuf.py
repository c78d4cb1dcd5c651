"""Parses Protocol Buffers messages without their library: fields by number.

A message is a sequence of fields: a varint holds the field's number and its wire type, followed by
a varint (0), eight bytes (1), a varint and that many bytes (2), or four bytes (5).
"""

from collections.abc import Iterator
from typing import Any

from weft.errors import FormatError

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
