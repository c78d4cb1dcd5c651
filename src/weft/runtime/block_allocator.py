"""First-fit allocation of a rank's region of the heap.

All ranks allocate and free in the same order, so each computes the same offsets without
communication.
"""

import mmap
from bisect import insort

from weft.errors import SharedMemoryError
from weft.units import format_size

PAGE = mmap.PAGESIZE


class BlockAllocator:
    """First fit over whole pages."""

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._blocks: list[tuple[int, int]] = []  # start, stop: sorted

    def __len__(self) -> int:
        return len(self._blocks)

    def allocate(self, nbytes: int) -> int:
        """Return the offset of ``nbytes`` free bytes."""
        size = round_up(nbytes, PAGE)
        start = 0
        for begin, end in self._blocks:
            if begin - start >= size:
                break
            start = end
        if start + size > self._nbytes:
            raise SharedMemoryError(
                f"out of heap memory: cannot allocate {format_size(nbytes)} of a rank's "
                f"{format_size(self._nbytes)}.",
                "Close prepared schedules that are no longer needed, or make /dev/shm larger.",
            )
        if size:
            insort(self._blocks, (start, start + size))
        return start

    def free(self, start: int) -> None:
        """Free the block that was allocated at ``start``."""
        self._blocks = [block for block in self._blocks if block[0] != start]


def round_up(value: int, unit: int) -> int:
    """Return the next multiple of ``unit``.

    >>> round_up(65, 64)
    128
    """
    return -(-value // unit) * unit
