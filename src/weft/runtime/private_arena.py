"""The private arena of a rank: heap memory that it allocates without the other ranks."""

import errno
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import RunError
from weft.runtime.block_allocator import BlockAllocator
from weft.runtime.bound_memory import Part, RawMemory, address_and_size, bytes_of
from weft.runtime.heap_arrays import HeapCommunicator
from weft.runtime.work import Work


class Allocation(NamedTuple):
    """A block of the arena and its bytes."""

    block: int
    bytes: NDArray[np.uint8]


class PrivateArena:
    """The end of this rank's region.

    Other ranks find memory in it by the location that is published with each call, as for all
    bound memory. Threads: any may allocate and free.
    """

    def __init__(self, comm: HeapCommunicator) -> None:
        self._member = comm.member
        self._start = comm.region(comm.rank) + comm.common_bytes
        self._blocks = BlockAllocator(comm.member.region_bytes - comm.common_bytes)
        heap = comm.member.view(0, comm.region(comm.num_ranks))
        self._heap = range(address_and_size(heap)[0], address_and_size(heap)[0] + heap.size)
        self._held: list[tuple[Work, list[Allocation]]] = []  # freed when the work is done
        # Reentrant: the garbage collector may free memory at any time.
        self._lock = threading.RLock()

    def is_shared(self, address: int) -> bool:
        """Return whether an address is in the heap, which all ranks can access."""
        return address in self._heap

    @property
    def num_allocations(self) -> int:
        """The number of allocated blocks."""
        return len(self._blocks)

    def allocate(self, nbytes: int) -> Allocation:
        """Allocate memory; raise OSError if there is not enough."""
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

    def free(self, allocation: Allocation) -> None:
        """Free memory, which must not be used any more."""
        self._member.release(self._start + allocation.block, allocation.bytes.size)
        with self._lock:
            self._blocks.free(allocation.block)

    def copies(self, parts: Sequence[Part]) -> tuple[list[Part], list[Allocation]]:
        """Return parts that all ranks can read, and the allocations of those that were copied."""
        self._free_done()
        found: dict[Part, Allocation] = {}
        try:
            for address, nbytes in parts:
                if nbytes and not self.is_shared(address) and (address, nbytes) not in found:
                    allocation = found[address, nbytes] = self.allocate(nbytes)
                    allocation.bytes[:] = bytes_of(RawMemory(address, nbytes))
        except OSError:
            self.release(list(found.values()), after=None)
            raise
        there = {part: address_and_size(allocation.bytes)[0] for part, allocation in found.items()}
        return [(there.get(part, part[0]), part[1]) for part in parts], list(found.values())

    def release(self, taken: list[Allocation], after: Work | None) -> None:
        """Free allocations when a work is done."""
        if after is not None and taken:
            with self._lock:
                self._held.append((after, taken))
            return
        for allocation in taken:
            self.free(allocation)

    def _free_done(self) -> None:
        with self._lock:
            held, self._held = self._held, []
        for work, taken in held:
            self.release(taken, None if work.is_done() else work)
