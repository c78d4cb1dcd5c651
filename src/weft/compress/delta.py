"""``delta+CODEC``: encodes the change since the last broadcast, for weights sent repeatedly."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from weft._core import CHANGES_CODEC, apply_changes, changes_room, check_changes, encode_changes
from weft.compress.codec_registry import Codec, codec_of, is_lossless
from weft.compress.frame import Octets, check_frame_status
from weft.errors import SizeError, UsageError

PREFIX = "delta+"
_MOST_BUFFERS = 1024  # per root; the buffer that was sent longest ago is dropped
_MOST_KEPT = 32 << 20  # bytes for changes: no piece is longer
_NEW, _KNOWN = 1, 0
_CODEC_BYTE = 3  # of the header of a frame
Send = Callable[[Octets], None]


class Delta:
    """The delta codec of one buffer, relative to what its receivers hold.

    Sender and receivers each have one; all start with zeros. A lossless codec encodes the bits that
    differ, a lossy one the difference. Both sides then hold the decoded sum, so errors do not
    accumulate. A frame that cannot be decoded changes nothing. ``delta+pack`` lists the values
    that changed where these are few.
    """

    def __init__(self, name: str, dtype: str, nbytes: int) -> None:
        self.codec: Codec = codec_of(inner_of(name), dtype)
        self.exact = is_lossless(name)
        if not self.exact and dtype != "float32":
            raise UsageError(
                f"codec {name!r}: expected dtype float32 (got {dtype}).",
                "Use delta+pack for other dtypes.",
            )
        if not self.exact and nbytes % word_bytes(dtype):
            raise SizeError(f"codec {name!r}: {nbytes} bytes are no whole values of {dtype}.")
        self.name, self.dtype = PREFIX + self.codec.name, dtype
        self.held: Octets = np.zeros(nbytes, np.uint8)
        self._changes: Octets = np.zeros(0, np.uint8)
        self._lists_changes = self.codec.name == "pack"
        self._word = word_bytes(dtype)

    def room(self, nbytes: int) -> int:
        """Return the bytes that ``encode`` may need for a chunk of ``nbytes``."""
        return max(self.codec.room(nbytes), changes_room(nbytes) if self._lists_changes else 0)

    def encode(self, chunk: Octets, out: Octets, at: int = 0) -> int:
        """Write the frame of ``chunk``, which is at byte ``at`` of the buffer."""
        held = self._held(chunk, at)
        if self._lists_changes and len(chunk) % self._word == 0:
            size = encode_changes(chunk, held, out, self._word)
            if size:
                return size
        size = self.codec.encode(self.difference(chunk, at), out)
        if self.exact:
            held[:] = chunk
        else:  # the state of the receivers
            self._decode(out[:size], held, at)
        return size

    def decode(self, frame: Octets, chunk: Octets, at: int = 0) -> None:
        """Decode a frame into ``chunk``, which is at byte ``at`` of the buffer."""
        held = self._held(chunk, at)
        if self._lists_changes and is_list_of_changes(frame):
            check_frame_status(check_changes(frame, held, self._word), self.name)
            apply_changes(frame, held, self._word)
        else:
            self._decode(frame, held, at)
        chunk[:] = held

    def encoded_bytes(self, chunk: Octets, at: int = 0) -> int:
        """Return the length that the frame of ``chunk`` would have."""
        out = np.empty(self.room(len(chunk)), np.uint8)
        if self._lists_changes and len(chunk) % self._word == 0:
            size = encode_changes(chunk, self._held(chunk, at).copy(), out, self._word)
            if size:
                return size
        return self.codec.encode(self.difference(chunk, at), out)

    def difference(self, chunk: Octets, at: int = 0) -> Octets:
        """Return the change from the state to ``chunk``; the next call reuses its memory."""
        held, change = self._held(chunk, at), self._room(len(chunk))
        if self.exact:
            return np.bitwise_xor(chunk, held, out=change)
        values = change.view(np.float32)
        np.subtract(chunk.view(np.float32), _finite(held), out=values)
        return change

    def add(self, change: Octets, at: int = 0) -> None:
        """Apply a change to the state."""
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
        """Return reused memory for a change: page faults on fresh memory would dominate."""
        if nbytes > _MOST_KEPT:
            return np.empty(nbytes, np.uint8)
        if len(self._changes) < nbytes:
            self._changes = np.zeros(nbytes, np.uint8)
        return self._changes[:nbytes]

    def _held(self, chunk: Octets, at: int) -> Octets:
        held = self.held[at : at + len(chunk)]
        if len(held) != len(chunk):
            raise SizeError(
                f"delta: {len(chunk)} bytes at {at} are outside the buffer of {len(self.held)} "
                "bytes."
            )
        return held


class Deltas:
    """The buffers that one rank has received by broadcast, by root and by the root's buffer number.

    The root identifies its buffer by its address and sends the number first, so ranks agree
    although their buffers are at different addresses.
    """

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._numbers: dict[
            tuple[int, int, str], int
        ] = {}  # of this rank's own buffers, oldest first
        self._held: dict[tuple[int, int], Delta] = {}  # by root and number

    def broadcast(
        self, name: str, dtype: str, chunk: Octets, root: int, plain: Send, coded: Send
    ) -> None:
        """Broadcast the root's ``chunk``; with a lossy codec the root gets what the others decode.

        ``plain`` and ``coded`` broadcast bytes from the root, unencoded or by the inner codec.
        """
        delta = self.agreed(name, dtype, chunk, root, plain)
        change = delta.difference(chunk) if self._rank == root else np.empty_like(chunk)
        coded(change)
        delta.add(change)
        chunk[:] = delta.held

    def agreed(self, name: str, dtype: str, chunk: Octets, root: int, plain: Send) -> Delta:
        """Return the state of the root's buffer on this rank; the root sends which buffer it is."""
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
        self._numbers[key] = number  # the most recently sent is last
        return number, state


def _finite(held: Octets) -> NDArray[np.float32]:
    """Replace values that are not finite by zeros: adding cannot reach anything from them.

    Both sides do so before they compute or apply a difference, so their states stay equal.
    """
    values = held.view(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        doubtful = not np.isfinite(values.sum())  # the fast test; a sum may overflow as well
    if doubtful:
        values[~np.isfinite(values)] = 0
    return values


def word_bytes(dtype: str) -> int:
    """Return the bytes of the words in which changes of a dtype are listed."""
    return 4 if dtype in ("float32", "int32") else 2


def is_list_of_changes(frame: Octets) -> bool:
    """Return whether a frame lists the values that changed."""
    return len(frame) > _CODEC_BYTE and int(frame[_CODEC_BYTE]) == CHANGES_CODEC


def is_delta(name: str) -> bool:
    """Return whether a codec encodes changes since the last call."""
    return name.startswith(PREFIX)


def inner_of(name: str) -> str:
    """Return the codec after the plus.

    >>> inner_of("delta+int8:64")
    'int8:64'
    """
    if not name.startswith(PREFIX) or name.startswith(PREFIX * 2):
        raise UsageError(f"{name!r} is not a delta codec.", "For example: delta+pack.")
    return name.removeprefix(PREFIX)
