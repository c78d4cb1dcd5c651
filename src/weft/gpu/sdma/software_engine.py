"""A software engine: executes the packets of a ring buffer on arrays, in order."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import BoundsError
from weft.gpu.sdma.packets import (
    BROADCAST_ALIGNMENT,
    AtomicAddPacket,
    BroadcastPacket,
    Compare,
    CopyPacket,
    FencePacket,
    FillPacket,
    NopPacket,
    Packet,
    PollPacket,
    SwapPacket,
    TimestampPacket,
    TrapPacket,
    WritePacket,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.gpu.sdma.ring_buffer import RingBuffer

    Bytes = NDArray[np.uint8]

_COMPARE: dict[Compare, Callable[[int, int], bool]] = {
    Compare.ALWAYS: lambda _a, _b: True,
    Compare.LESS: operator.lt,
    Compare.LESS_EQUAL: operator.le,
    Compare.EQUAL: operator.eq,
    Compare.NOT_EQUAL: operator.ne,
    Compare.GREATER_EQUAL: operator.ge,
    Compare.GREATER: operator.gt,
}
PAGE = 4096


class AddressSpace:
    """Arrays of bytes in one address space, with an unmapped page between them."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._arrays: list[Bytes] = []
        self._next = PAGE

    def map(self, array: Bytes) -> int:
        """Map an array and return its address."""
        address = self._next
        self._starts.append(address)
        self._arrays.append(array)
        self._next += (len(array) // PAGE + 2) * PAGE
        return address

    def at(self, address: int, nbytes: int) -> Bytes:
        """Return the bytes at ``address``; raise a BoundsError if they are not in one array."""
        number = int(np.searchsorted(self._starts, address, side="right")) - 1
        if number >= 0:
            offset = address - self._starts[number]
            if offset + nbytes <= len(self._arrays[number]):
                return self._arrays[number][offset : offset + nbytes]
        raise BoundsError(
            f"SDMA engine accessed {nbytes} bytes at unmapped address {address:#x}.",
            "Map every buffer and flag before the packets that name them.",
        )

    def word(self, address: int, nbytes: int = 4) -> int:
        """Return a little-endian integer from memory."""
        return int.from_bytes(self.at(address, nbytes).tobytes(), "little")

    def put(self, address: int, value: int, nbytes: int = 4) -> None:
        """Write an integer, truncated to ``nbytes``, as counters are."""
        data = (value % (1 << 8 * nbytes)).to_bytes(nbytes, "little")
        self.at(address, nbytes)[:] = np.frombuffer(data, np.uint8)


class SdmaEngine:
    """Executes the packets of its ring buffer; ``traps`` and ``packets`` count what it did."""

    def __init__(self, ring: RingBuffer, memory: AddressSpace) -> None:
        self.ring = ring
        self.memory = memory
        self.traps: list[int] = []
        self.packets = 0

    def step(self) -> bool:
        """Execute one packet; return False if there is none, or a poll is not satisfied."""
        found = self.ring.peek()
        if found is None:
            return False
        packet, length = found
        if isinstance(packet, PollPacket) and not self._holds(packet):
            return False
        self._execute(packet)
        self.ring.advance(length)
        self.packets += 1
        return True

    def _holds(self, poll: PollPacket) -> bool:
        return _COMPARE[poll.compare](self.memory.word(poll.address) & poll.mask, poll.value)

    def _execute(self, packet: Packet) -> None:
        memory = self.memory
        match packet:
            case CopyPacket(src, dst, nbytes):
                memory.at(dst, nbytes)[:] = memory.at(src, nbytes).copy()
            case BroadcastPacket(src, dsts, nbytes):
                if (dsts[0] - dsts[1]) % BROADCAST_ALIGNMENT:
                    raise BoundsError(
                        f"SDMA engine cannot broadcast to {dsts[0]:#x} and {dsts[1]:#x} at once.",
                        f"Both must have the same remainder by {BROADCAST_ALIGNMENT}.",
                    )
                data = memory.at(src, nbytes).copy()
                for dst in dsts:
                    memory.at(dst, nbytes)[:] = data
            case SwapPacket(a, b, nbytes):
                kept = memory.at(a, nbytes).copy()
                memory.at(a, nbytes)[:] = memory.at(b, nbytes)
                memory.at(b, nbytes)[:] = kept
            case AtomicAddPacket(address, value):
                memory.put(address, memory.word(address, 8) + value, 8)
            case _:
                self._write(packet)

    def _write(self, packet: Packet) -> None:
        memory = self.memory
        match packet:
            case WritePacket(dst, words):
                for number, word in enumerate(words):
                    memory.put(dst + 4 * number, word)
            case FencePacket(address, word):
                memory.put(address, word)
            case FillPacket(dst, value, nbytes, item):
                pattern = np.frombuffer(value.to_bytes(item, "little"), np.uint8)
                memory.at(dst, nbytes)[:] = np.resize(pattern, nbytes)
            case TimestampPacket(address):
                memory.put(address, self.packets, 8)  # a clock that counts packets
            case TrapPacket(context):
                self.traps.append(context)
            case NopPacket() | PollPacket():
                pass
            case _:
                raise AssertionError(packet)
