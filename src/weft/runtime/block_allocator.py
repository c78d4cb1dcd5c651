"""Who has which part of a rank's region: the same on every rank, because all ask alike."""

import mmap
from bisect import insort

from weft.errors import RunError
from weft.units import format_size

PAGE = mmap.PAGESIZE


class BlockAllocator:
    """First fit over whole pages.

    Ranks take and give back in one order, so each computes the same offsets without talking.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = nbytes
        self._taken: list[tuple[int, int]] = []  # start, stop: sorted

    def __len__(self) -> int:
        return len(self._taken)

    def allocate(self, nbytes: int) -> int:
        """Give the offset of ``nbytes`` that nobody has."""
        size = round_up(nbytes, PAGE)
        start = 0
        for begin, end in self._taken:
            if begin - start >= size:
                break
            start = end
        if start + size > self._nbytes:
            raise RunError(
                f"{format_size(nbytes)} do not fit a rank's {format_size(self._nbytes)} of heap.",
                "Close what is prepared and no longer needed, or give /dev/shm more room.",
            )
        if size:
            insort(self._taken, (start, start + size))
        return start

    def free(self, start: int) -> None:
        """Let others have what was taken at ``start``."""
        self._taken = [block for block in self._taken if block[0] != start]


def round_up(value: int, unit: int) -> int:
    """Give the next multiple of ``unit``.

    >>> round_up(65, 64)
    128
    """
    return -(-value // unit) * unit
