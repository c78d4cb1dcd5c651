"""Heap memory of one rank alone: copies of what others could not read where it lies."""

import ctypes
from collections.abc import Sequence
from typing import Any

from weft.runtime.arrays import Arrays
from weft.runtime.blocks import Blocks
from weft.runtime.memory import located
from weft.runtime.work import Work

Part = tuple[int, int]  # address, bytes


class Spare:
    """The end of this rank's region, which no other rank knows: it needs no agreement.

    Others find a copy by the place that is published with the call, as any bound memory.
    """

    def __init__(self, crew: Arrays) -> None:
        self._crew = crew
        self._start = crew.region(crew.rank) + crew.common_bytes
        self._blocks = Blocks(crew.member.region_bytes - crew.common_bytes)
        heap = crew.member.view(0, crew.region(crew.num_ranks))
        self._heap = range(located(heap)[0], located(heap)[0] + heap.size)
        self._held: list[tuple[Work, list[Part]]] = []  # until a work is done

    def copies(self, parts: Sequence[Part]) -> tuple[list[Part], list[Part]]:
        """Give parts that all can read, and what was taken for them. One part is copied once."""
        self._give_back_done()
        taken: list[Part] = []
        found: dict[Part, int] = {}
        for address, nbytes in parts:
            if nbytes and address not in self._heap and (address, nbytes) not in found:
                found[address, nbytes] = self._copy(address, nbytes, taken)
        return [(found.get(part, part[0]), part[1]) for part in parts], taken

    def release(self, taken: Sequence[Part], after: Work | None) -> None:
        """Give back what was taken, when that work is done."""
        if after is not None:
            self._held.append((after, list(taken)))
            return
        for block, nbytes in taken:
            self._crew.member.release(self._start + block, nbytes)
            self._blocks.give_back(block)

    def _copy(self, address: int, nbytes: int, taken: list[Part]) -> int:
        block = self._blocks.take(nbytes)
        taken.append((block, nbytes))
        self._crew.member.reserve(self._start + block, nbytes)
        here: Any = self._crew.member.view(self._start + block, nbytes)
        here[:] = _bytes_at(address, nbytes)
        return located(here)[0]

    def _give_back_done(self) -> None:
        held, self._held = self._held, []
        for work, taken in held:
            self.release(taken, None if work.is_done() else work)


def _bytes_at(address: int, nbytes: int) -> Any:
    return (ctypes.c_uint8 * nbytes).from_address(address)
