"""A software engine: carries out the packets of a ring on arrays, in order, one at a time."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import BoundsError
from weft.sdma.packets import (
    AtomicAdd,
    Broadcast,
    Compare,
    Copy,
    Fence,
    Fill,
    Nop,
    Packet,
    Poll,
    Swap,
    Timestamp,
    Trap,
    Write,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.sdma.ring import Ring

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


class Memory:
    """Arrays of bytes in one space of addresses, with a page that belongs to nobody between."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._arrays: list[Bytes] = []
        self._next = PAGE

    def map(self, array: Bytes) -> int:
        """Give an array its place and return the address."""
        address = self._next
        self._starts.append(address)
        self._arrays.append(array)
        self._next += (len(array) // PAGE + 2) * PAGE
        return address

    def at(self, address: int, nbytes: int) -> Bytes:
        """The bytes from ``address`` on; a fault where they are not all of one array."""
        number = int(np.searchsorted(self._starts, address, side="right")) - 1
        if number >= 0:
            offset = address - self._starts[number]
            if offset + nbytes <= len(self._arrays[number]):
                return self._arrays[number][offset : offset + nbytes]
        raise BoundsError(
            f"an engine touched {nbytes} bytes at {address:#x}, where no array is.",
            "Map every buffer and flag before the packets that name them.",
        )

    def word(self, address: int, nbytes: int = 4) -> int:
        """A number of memory, little end first."""
        return int.from_bytes(self.at(address, nbytes).tobytes(), "little")

    def put(self, address: int, value: int, nbytes: int = 4) -> None:
        """Write a number; what does not fit is cut off, as counters do."""
        data = (value % (1 << 8 * nbytes)).to_bytes(nbytes, "little")
        self.at(address, nbytes)[:] = np.frombuffer(data, np.uint8)


class Engine:
    """Executes what its ring holds; ``traps`` and ``packets`` count what it did."""

    def __init__(self, ring: Ring, memory: Memory) -> None:
        self.ring = ring
        self.memory = memory
        self.traps: list[int] = []
        self.packets = 0

    def step(self) -> bool:
        """Carry out one packet; False where there is none, or it polls in vain."""
        found = self.ring.peek()
        if found is None:
            return False
        packet, length = found
        if isinstance(packet, Poll) and not self._holds(packet):
            return False
        self._execute(packet)
        self.ring.advance(length)
        self.packets += 1
        return True

    def _holds(self, poll: Poll) -> bool:
        return _COMPARE[poll.compare](self.memory.word(poll.address) & poll.mask, poll.value)

    def _execute(self, packet: Packet) -> None:
        memory = self.memory
        match packet:
            case Copy(src, dst, nbytes):
                memory.at(dst, nbytes)[:] = memory.at(src, nbytes).copy()
            case Broadcast(src, dsts, nbytes):
                data = memory.at(src, nbytes).copy()
                for dst in dsts:
                    memory.at(dst, nbytes)[:] = data
            case Swap(a, b, nbytes):
                kept = memory.at(a, nbytes).copy()
                memory.at(a, nbytes)[:] = memory.at(b, nbytes)
                memory.at(b, nbytes)[:] = kept
            case AtomicAdd(address, value):
                memory.put(address, memory.word(address, 8) + value, 8)
            case _:
                self._write(packet)

    def _write(self, packet: Packet) -> None:
        memory = self.memory
        match packet:
            case Write(dst, words):
                for number, word in enumerate(words):
                    memory.put(dst + 4 * number, word)
            case Fence(address, word):
                memory.put(address, word)
            case Fill(dst, value, nbytes, item):
                pattern = np.frombuffer(value.to_bytes(item, "little"), np.uint8)
                memory.at(dst, nbytes)[:] = np.resize(pattern, nbytes)
            case Timestamp(address):
                memory.put(address, self.packets, 8)  # a clock that counts packets
            case Trap(context):
                self.traps.append(context)
            case Nop() | Poll():
                pass
            case _:
                raise AssertionError(packet)
