"""``delta+CODEC``: what changed since the last time, for weights that are sent again and again."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from weft.compress.codec import Codec, codec_of, is_lossless
from weft.compress.frame import Octets
from weft.errors import SizeError, UsageError

PREFIX = "delta+"
_MOST_BUFFERS = 1024  # of one root: the one that was sent longest ago is forgotten
_MOST_KEPT = 32 << 20  # bytes of room for changes: no piece is longer
_NEW, _KNOWN = 1, 0
Send = Callable[[Octets], None]


class Delta:
    """The codec of one buffer, against what its receivers hold of it.

    Sender and receivers each have one; all begin with zeros. A lossless codec encodes the bits
    that differ, a lossy one the difference: as both sides then hold the decoded sum, errors do
    not grow from time to time. A frame that cannot be decoded changes nothing.
    """

    def __init__(self, name: str, dtype: str, nbytes: int) -> None:
        self.codec: Codec = codec_of(inner_of(name), dtype)
        self.exact = is_lossless(name)
        if not self.exact and dtype != "float32":
            raise UsageError(f"{name!r} is for float32, not {dtype}.", "Use delta+pack for others.")
        self.name, self.dtype = PREFIX + self.codec.name, dtype
        self.held: Octets = np.zeros(nbytes, np.uint8)
        self._changes: Octets = np.zeros(0, np.uint8)
        self.room = self.codec.room

    def encode(self, chunk: Octets, out: Octets, at: int = 0) -> int:
        """Write the frame of ``chunk``, which lies at byte ``at`` of the buffer."""
        held = self._held(chunk, at)
        size = self.codec.encode(self.difference(chunk, at), out)
        if self.exact:
            held[:] = chunk
        else:  # what the receivers will have
            self._decode(out[:size], held, at)
        return size

    def decode(self, frame: Octets, chunk: Octets, at: int = 0) -> None:
        """Fill ``chunk``, which lies at byte ``at`` of the buffer, from its frame."""
        held = self._held(chunk, at)
        self._decode(frame, held, at)
        chunk[:] = held

    def difference(self, chunk: Octets, at: int = 0) -> Octets:
        """Give what ``add`` makes of what is held into ``chunk``; the next one is in its place."""
        held, change = self._held(chunk, at), self._room(len(chunk))
        if self.exact:
            return np.bitwise_xor(chunk, held, out=change)
        values = change.view(np.float32)
        np.subtract(chunk.view(np.float32), _finite(held), out=values)
        return change

    def add(self, change: Octets, at: int = 0) -> None:
        """Change what is held."""
        held = self._held(change, at)
        if self.exact:
            np.bitwise_xor(held, change, out=held)
        else:
            values = _finite(held)
            np.add(values, change.view(np.float32), out=values)

    def _decode(self, frame: Octets, held: Octets, at: int) -> None:
        change = self._room(len(held))
        self.codec.decode(frame, change)
        self.add(change, at)

    def _room(self, nbytes: int) -> Octets:
        """Give memory for a piece's change, the same again: fresh pages cost more than it."""
        if nbytes > _MOST_KEPT:
            return np.empty(nbytes, np.uint8)
        if len(self._changes) < nbytes:
            self._changes = np.zeros(nbytes, np.uint8)
        return self._changes[:nbytes]

    def _held(self, chunk: Octets, at: int) -> Octets:
        held = self.held[at : at + len(chunk)]
        if len(held) != len(chunk):
            raise SizeError(f"{len(chunk)} bytes at {at} reach outside {len(self.held)}.")
        return held


class Deltas:
    """What one rank remembers of the buffers that were broadcast, each by its root's number.

    Which buffer it is, its root alone decides, by the memory it lies in: it says the number
    first. So ranks agree although each has its memory elsewhere.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._numbers: dict[tuple[int, int, str], int] = {}  # of this rank's own, oldest first
        self._held: dict[tuple[int, int], Delta] = {}  # by root and number

    def broadcast(
        self, name: str, dtype: str, chunk: Octets, root: int, plain: Send, coded: Send
    ) -> None:
        """Let all hold the root's ``chunk``; after a lossy codec the root's is what others have.

        ``plain`` and ``coded`` broadcast bytes from the root, as they are or by the inner codec.
        """
        delta = self.agreed(name, dtype, chunk, root, plain)
        change = delta.difference(chunk) if self._rank == root else np.empty_like(chunk)
        coded(change)
        delta.add(change)
        chunk[:] = delta.held

    def agreed(self, name: str, dtype: str, chunk: Octets, root: int, plain: Send) -> Delta:
        """Give what this rank holds of the root's buffer: the root says which one it is."""
        delta = Delta(name, dtype, len(chunk))  # raises on every rank alike
        note = np.zeros(2, np.int64)
        if self._rank == root:
            note[:] = self._number_of(chunk, delta.name)
        plain(note.view(np.uint8))
        number, fresh = note.tolist()
        if fresh == _NEW:
            self._held[root, number] = delta
        return self._held[root, number]

    def _number_of(self, chunk: Octets, name: str) -> tuple[int, int]:
        key = (chunk.ctypes.data, len(chunk), name)
        number = self._numbers.pop(key, None)
        state = _NEW if number is None else _KNOWN
        if number is None:
            number = len(self._numbers)
            if number == _MOST_BUFFERS:
                number = self._numbers.pop(next(iter(self._numbers)))
        self._numbers[key] = number  # the last sent stands last
        return number, state


def _finite(held: Octets) -> NDArray[np.float32]:
    """Make zeros of what is not finite: nothing can be reached from there by adding.

    Both sides do it before they take or add a difference, so they still hold the same.
    """
    values = held.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        doubtful = not np.isfinite(values.sum())  # the quick look; a sum may be too large as well
    if doubtful:
        values[~np.isfinite(values)] = 0
    return values


def is_delta(name: str) -> bool:
    """Tell whether a codec remembers what it sent before."""
    return name.startswith(PREFIX)


def inner_of(name: str) -> str:
    """Give the codec behind the plus.

    >>> inner_of("delta+int8:64")
    'int8:64'
    """
    if not name.startswith(PREFIX) or name.startswith(PREFIX * 2):
        raise UsageError(f"{name!r} is no delta codec.", "For example: delta+pack.")
    return name.removeprefix(PREFIX)
