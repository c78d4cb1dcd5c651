"""The codecs of a rank's Encode and Decode rows, and the copies that move encoded chunks."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft._core import FrameStatus
from weft.compress import Codec, codec_of
from weft.compress.codec_registry import Native
from weft.compress.frame import Octets
from weft.errors import CodecError
from weft.schedule import CommandKind, CommandTable, Decode, Encode

Ints = NDArray[np.int64]


class PythonCoder:
    """A codec implemented in Python, as the native core calls it: it returns numbers."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self.room = codec.room
        self.encode = codec.encode
        # Fails now if its library is missing.
        codec.encode(np.zeros(4, np.uint8), np.empty(codec.room(4), np.uint8))

    def decode(self, frame: Octets, chunk: Octets) -> int:
        """Fill ``chunk``; return what is wrong with its frame."""
        try:
            self._codec.decode(frame, chunk)
        except CodecError as error:
            return FrameStatus.CONTENT if error.verdict is None else error.verdict
        return FrameStatus.GOOD


def coder_of(name: str, dtype: str) -> Any:
    """Return a codec of the native core, or an object that the core calls back."""
    codec = codec_of(name, dtype)
    return codec.core if isinstance(codec, Native) else PythonCoder(codec)


def coders_of(table: CommandTable, rows: Ints) -> tuple[list[Any], Ints]:
    """Return the codecs, and the index of the one that each row uses; -1 for none."""
    named: dict[tuple[str, str], int] = {}
    numbers = np.full(len(table.commands), -1, np.int64)
    for number in np.unique(table.command[rows]).tolist():
        command = table.commands[number]
        if isinstance(command, Encode | Decode) and command.codec != "none":
            numbers[number] = named.setdefault((command.codec, command.dtype), len(named))
    return [coder_of(*key) for key in named], numbers[table.command[rows]]


def slot_copies(table: CommandTable, rows: Ints) -> Ints:
    """Return which rows copy a slot: bytes that some rank encodes into or decodes from."""
    first = table.access_start[:-1]
    encodes, decodes = table.kind == CommandKind.ENCODE, table.kind == CommandKind.DECODE
    slots = {*_places(table, first[encodes] + 1), *_places(table, first[decodes])}
    result = np.zeros(len(rows), np.int64)
    for number in np.flatnonzero(table.kind[rows] == CommandKind.COPY).tolist() if slots else ():
        both = _places(table, first[rows[number]] + np.arange(2))
        result[number] = all(place in slots for place in both)
    return result


def _places(table: CommandTable, accesses: Any) -> list[tuple[int, int, int]]:
    """Return buffer, offset and bytes of accesses; a slot has the same on every rank."""
    columns = (table.access_buffer, table.access_offset, table.access_nbytes)
    return list(zip(*(column[accesses].tolist() for column in columns), strict=True))
