"""The ring of memory through which a host feeds an engine."""

from __future__ import annotations

import struct

from weft.errors import UsageError
from weft.sdma.packets import Nop, Packet
from weft.sdma.words import decode_one, encode, length_of


class Ring:
    """A ring of words. The host writes packets behind ``written``, then rings the doorbell.

    Both pointers only grow; a word's place is its number modulo the size. A packet never goes
    over the end: what is left there is filled with NOPs.
    """

    def __init__(self, num_words: int) -> None:
        if num_words < 16 or num_words & num_words - 1:
            raise UsageError(
                f"a ring of {num_words} words cannot be.", "Use a power of two, 16 or more."
            )
        self.words = [0] * num_words
        self.written = 0  # by the host, not yet announced
        self.doorbell = 0  # what the engine knows of
        self.read = 0  # by the engine

    def room_for(self, packet: bytes) -> bool:
        """Whether a packet can be written now, and NOPs in front of it where it would wrap."""
        length = len(packet) // 4
        if length > len(self.words) // 2:
            raise UsageError(
                f"a packet of {length} words does not fit a ring of {len(self.words)}.",
                "Use a ring at least twice as long as its longest packet.",
            )
        return self.written + self._padding(length) + length - self.read <= len(self.words)

    def write(self, packet: bytes) -> None:
        """Write a packet; the engine does not see it before the doorbell."""
        assert self.room_for(packet)
        padding = self._padding(len(packet) // 4)
        for _ in range(padding):
            self._put(encode(Nop()))
        self._put(packet)

    def ring(self) -> None:
        """Tell the engine of everything written so far."""
        self.doorbell = self.written

    def peek(self) -> tuple[Packet, int] | None:
        """The next packet and its length in words; None where the engine has read all it may."""
        if self.read == self.doorbell:
            return None
        at = self.read % len(self.words)
        length = length_of(self.words, at)
        return decode_one(self.words[at : at + length]), length

    def advance(self, length: int) -> None:
        """Leave ``length`` words behind."""
        self.read += length

    def _padding(self, length: int) -> int:
        left = len(self.words) - self.written % len(self.words)
        return left if left < length else 0

    def _put(self, packet: bytes) -> None:
        at = self.written % len(self.words)
        values = struct.unpack(f"<{len(packet) // 4}I", packet)
        self.words[at : at + len(values)] = values
        self.written += len(values)
