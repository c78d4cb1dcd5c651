"""The ring buffer through which a host submits packets to an engine."""

from __future__ import annotations

import struct

from weft.errors import UsageError
from weft.gpu.sdma.packets import NopPacket, Packet
from weft.gpu.sdma.words import decode_one, encode, length_of


class RingBuffer:
    """A ring buffer of words. The host writes packets at ``written``, then rings the doorbell.

    Both pointers only grow; the position of a word is its number modulo the size. A packet never
    wraps around the end: the rest is filled with NOPs.
    """

    def __init__(self, num_words: int) -> None:
        if num_words < 16 or num_words & num_words - 1:
            raise UsageError(
                f"num_words is {num_words}, expected a power of two.",
                "Use a power of two, 16 or more.",
            )
        self.words = [0] * num_words
        self.written = 0  # by the host, not yet submitted
        self.doorbell = 0  # visible to the engine
        self.read = 0  # by the engine

    def fits(self, packet: bytes) -> bool:
        """Return whether a packet fits now, including NOPs before it if it would wrap."""
        length = len(packet) // 4
        if length > len(self.words) // 2:
            raise UsageError(
                f"a packet of {length} words does not fit a ring buffer of {len(self.words)}.",
                "Use a ring buffer at least twice as long as its longest packet.",
            )
        return self.written + self._padding(length) + length - self.read <= len(self.words)

    def write(self, packet: bytes) -> None:
        """Write a packet; the engine does not see it before the doorbell."""
        assert self.fits(packet)
        padding = self._padding(len(packet) // 4)
        for _ in range(padding):
            self._put(encode(NopPacket()))
        self._put(packet)

    def ring(self) -> None:
        """Ring the doorbell: make everything written so far visible to the engine."""
        self.doorbell = self.written

    def peek(self) -> tuple[Packet, int] | None:
        """Return the next packet and its length in words; None if everything has been read."""
        if self.read == self.doorbell:
            return None
        at = self.read % len(self.words)
        length = length_of(self.words, at)
        return decode_one(self.words[at : at + length]), length

    def advance(self, length: int) -> None:
        """Advance the read pointer by ``length`` words."""
        self.read += length

    def _padding(self, length: int) -> int:
        left = len(self.words) - self.written % len(self.words)
        return left if left < length else 0

    def _put(self, packet: bytes) -> None:
        at = self.written % len(self.words)
        values = struct.unpack(f"<{len(packet) // 4}I", packet)
        self.words[at : at + len(values)] = values
        self.written += len(values)
