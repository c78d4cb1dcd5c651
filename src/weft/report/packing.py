"""Columns of whole numbers as short text, and values as JSON that may stand inside HTML.

A number is written in groups of seven bits, the lowest first, the top bit of a byte saying
that more follow (the varint of Protocol Buffers), and the bytes as base64. What grows slowly
is packed as differences: most of them then take one byte or two.
"""

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.report.results import plain

_BITS = 7
_MORE = 0x80
# Inside a script element only these can end it or open a comment.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def pack(column: ArrayLike) -> str:
    """Write numbers that are zero or more.

    >>> pack([0, 1, 300])
    'AAGsAg=='
    """
    values = np.asarray(column)
    assert not len(values) or values.min() >= 0, "packed numbers are never negative"
    left = values.astype(np.uint64)
    lengths = np.ones(len(left), np.int64)
    rest = left >> np.uint64(_BITS)
    while rest.any():
        lengths += rest > 0
        rest >>= np.uint64(_BITS)
    return base64.b64encode(_bytes(left, lengths).tobytes()).decode()


def _bytes(values: NDArray[np.uint64], lengths: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Lay the groups of every number behind those of the one before it."""
    first = np.cumsum(lengths) - lengths
    out = np.zeros(int(lengths.sum()), np.uint8)
    for group in range(int(lengths.max(initial=0))):
        here = lengths > group
        bits = (values[here] >> np.uint64(_BITS * group)) & np.uint64(_MORE - 1)
        more = np.where(lengths[here] > group + 1, _MORE, 0)
        out[first[here] + group] = bits.astype(np.uint8) | more.astype(np.uint8)
    return out


def unpack(text: str) -> list[int]:
    """Read what ``pack`` wrote.

    >>> unpack(pack([0, 1, 300, 1 << 53]))
    [0, 1, 300, 9007199254740992]
    """
    numbers, value, shift = list[int](), 0, 0
    for byte in base64.b64decode(text):
        value |= (byte & (_MORE - 1)) << shift
        shift += _BITS
        if not byte & _MORE:
            numbers.append(value)
            value, shift = 0, 0
    return numbers


def script_json(value: Any) -> str:
    r"""Write a value as JSON that nothing in it can end the script element around it.

    >>> script_json({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(
        plain(value), separators=(",", ":"), allow_nan=False
    )  # ASCII: also halves of pairs
    for letter, code in _UNSAFE.items():
        text = text.replace(letter, code)
    return text
