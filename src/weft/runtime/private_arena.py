"""Heap memory of one rank alone: no other rank has to take any at the same time."""

import errno
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import RunError
from weft.runtime.block_allocator import BlockAllocator
from weft.runtime.bound_memory import RawMemory, address_and_size, bytes_of
from weft.runtime.heap_arrays import HeapCommunicator
from weft.runtime.work import Work

Part = tuple[int, int]  # address, bytes


class Allocation(NamedTuple):
    """Some bytes of the heap."""

    block: int
    bytes: NDArray[np.uint8]


class PrivateArena:
    """The end of this rank's region, which the others do not know.

    They find what lies there by the place that is published with a call, as all bound memory.
    Threads: any may take and give back.
    """

    def __init__(self, comm: HeapCommunicator) -> None:
        self._member = comm.member
        self._start = comm.region(comm.rank) + comm.common_bytes
        self._blocks = BlockAllocator(comm.member.region_bytes - comm.common_bytes)
        heap = comm.member.view(0, comm.region(comm.num_ranks))
        self._heap = range(address_and_size(heap)[0], address_and_size(heap)[0] + heap.size)
        self._held: list[tuple[Work, list[Allocation]]] = []  # until a work is done
        self._lock = (
            threading.RLock()
        )  # of blocks and what is held; collected memory comes back at any time

    def is_shared(self, address: int) -> bool:
        """Tell whether all ranks can reach what lies there."""
        return address in self._heap

    @property
    def num_allocations(self) -> int:
        """How many pieces are taken."""
        return len(self._blocks)

    def allocate(self, nbytes: int) -> Allocation:
        """Take memory; OSError when there is no more of it."""
        try:
            with self._lock:
                block = self._blocks.allocate(nbytes)
        except RunError as error:
            raise OSError(errno.ENOSPC, error.message) from error
        try:
            self._member.reserve(self._start + block, nbytes)
        except OSError:
            with self._lock:
                self._blocks.free(block)
            raise
        return Allocation(block, self._member.view(self._start + block, nbytes))

    def free(self, lent: Allocation) -> None:
        """Give memory back; nobody may use it any more."""
        self._member.release(self._start + lent.block, lent.bytes.size)
        with self._lock:
            self._blocks.free(lent.block)

    def copies(self, parts: Sequence[Part]) -> tuple[list[Part], list[Allocation]]:
        """Give parts that all can read, and what was taken for them. One part is copied once."""
        self._free_done()
        found: dict[Part, Allocation] = {}
        try:
            for address, nbytes in parts:
                if nbytes and not self.is_shared(address) and (address, nbytes) not in found:
                    lent = found[address, nbytes] = self.allocate(nbytes)
                    lent.bytes[:] = bytes_of(RawMemory(address, nbytes))
        except OSError:
            self.release(list(found.values()), after=None)
            raise
        there = {part: address_and_size(lent.bytes)[0] for part, lent in found.items()}
        return [(there.get(part, part[0]), part[1]) for part in parts], list(found.values())

    def release(self, taken: list[Allocation], after: Work | None) -> None:
        """Give back what was taken, when that work is done."""
        if after is not None and taken:
            with self._lock:
                self._held.append((after, taken))
            return
        for lent in taken:
            self.free(lent)

    def _free_done(self) -> None:
        with self._lock:
            held, self._held = self._held, []
        for work, taken in held:
            self.release(taken, None if work.is_done() else work)
