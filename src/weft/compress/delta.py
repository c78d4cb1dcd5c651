"""``delta+CODEC``: what changed since the last time, for weights that are sent again and again."""

import numpy as np

from weft.compress.codec import Codec, codec_of, is_lossless
from weft.compress.frame import Octets
from weft.errors import SizeError, UsageError

_PREFIX = "delta+"


class Delta:
    """The codec of one buffer, against what its receivers hold of it.

    Sender and receivers each have one; all begin with zeros. A lossless codec encodes the bits
    that differ, a lossy one the difference: as both sides then hold the decoded sum, errors do
    not grow from time to time. A frame that cannot be decoded changes nothing.
    """

    def __init__(self, name: str, dtype: str, nbytes: int) -> None:
        if not name.startswith(_PREFIX) or name.startswith(_PREFIX * 2):
            raise UsageError(f"{name!r} is no delta codec.", "For example: delta+pack.")
        self._codec: Codec = codec_of(name.removeprefix(_PREFIX), dtype)
        self._exact = is_lossless(name)
        if not self._exact and dtype != "float32":
            raise UsageError(f"{name!r} is for float32, not {dtype}.", "Use delta+pack for others.")
        self.name, self.dtype = _PREFIX + self._codec.name, dtype
        self.held: Octets = np.zeros(nbytes, np.uint8)
        self.room = self._codec.room

    def encode(self, chunk: Octets, out: Octets, at: int = 0) -> int:
        """Write the frame of ``chunk``, which lies at byte ``at`` of the buffer."""
        held = self._held(chunk, at)
        size = self._codec.encode(self._difference(chunk, held), out)
        if self._exact:
            held[:] = chunk
        else:  # what the receivers will have
            self._add(out[:size], held)
        return size

    def decode(self, frame: Octets, chunk: Octets, at: int = 0) -> None:
        """Fill ``chunk``, which lies at byte ``at`` of the buffer, from its frame."""
        held = self._held(chunk, at)
        self._add(frame, held)
        chunk[:] = held

    def _held(self, chunk: Octets, at: int) -> Octets:
        held = self.held[at : at + len(chunk)]
        if len(held) != len(chunk):
            raise SizeError(f"{len(chunk)} bytes at {at} reach outside {len(self.held)}.")
        return held

    def _difference(self, chunk: Octets, held: Octets) -> Octets:
        if self._exact:
            return np.bitwise_xor(chunk, held)
        return np.subtract(chunk.view(np.float32), held.view(np.float32)).view(np.uint8)

    def _add(self, frame: Octets, held: Octets) -> None:
        change = np.empty_like(held)
        self._codec.decode(frame, change)
        if self._exact:
            np.bitwise_xor(held, change, out=held)
        else:
            values = held.view(np.float32)
            np.add(values, change.view(np.float32), out=values)
