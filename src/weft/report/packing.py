"""Compact encoding of integer columns, and JSON that is safe inside HTML.

An integer is encoded as a varint of Protocol Buffers (groups of seven bits, the lowest first; the
top bit of a byte says that more follow), and the bytes as base64. Slowly growing columns are
encoded as differences, most of which take one or two bytes.
"""

import base64
import json
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.report.results import plain

_BITS = 7
_MORE = 0x80
# Only these can end a script element or open a comment in it.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def pack(column: ArrayLike) -> str:
    """Encode non-negative integers.

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
    """Return the concatenated bytes of all varints."""
    first = np.cumsum(lengths) - lengths
    out = np.zeros(int(lengths.sum()), np.uint8)
    for group in range(int(lengths.max(initial=0))):
        here = lengths > group
        bits = (values[here] >> np.uint64(_BITS * group)) & np.uint64(_MORE - 1)
        more = np.where(lengths[here] > group + 1, _MORE, 0)
        out[first[here] + group] = bits.astype(np.uint8) | more.astype(np.uint8)
    return out


def unpack(text: str) -> list[int]:
    """Decode what ``pack`` returned.

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
    r"""Encode a value as JSON that cannot end the script element around it.

    >>> script_json({"name": "</script>"})
    '{"name":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(
        plain(value), separators=(",", ":"), allow_nan=False
    )  # ASCII, so that unpaired surrogates are escaped too
    for letter, code in _UNSAFE.items():
        text = text.replace(letter, code)
    return text
