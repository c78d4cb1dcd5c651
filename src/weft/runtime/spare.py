"""Heap memory of one rank alone: no other rank has to take any at the same time."""

import errno
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import RunError
from weft.runtime.arrays import Arrays
from weft.runtime.blocks import Blocks
from weft.runtime.memory import Memory, located, octets_of
from weft.runtime.work import Work

Part = tuple[int, int]  # address, bytes


class Lent(NamedTuple):
    """Some bytes of the heap."""

    block: int
    bytes: NDArray[np.uint8]


class Spare:
    """The end of this rank's region, which the others do not know.

    They find what lies there by the place that is published with a call, as all bound memory.
    Threads: any may take and give back.
    """

    def __init__(self, crew: Arrays) -> None:
        self._member = crew.member
        self._start = crew.region(crew.rank) + crew.common_bytes
        self._blocks = Blocks(crew.member.region_bytes - crew.common_bytes)
        heap = crew.member.view(0, crew.region(crew.num_ranks))
        self._heap = range(located(heap)[0], located(heap)[0] + heap.size)
        self._held: list[tuple[Work, list[Lent]]] = []  # until a work is done
        self._lock = (
            threading.RLock()
        )  # of blocks and what is held; collected memory comes back at any time

    def is_shared(self, address: int) -> bool:
        """Tell whether all ranks can reach what lies there."""
        return address in self._heap

    @property
    def num_lent(self) -> int:
        """How many pieces are taken."""
        return len(self._blocks)

    def take(self, nbytes: int) -> Lent:
        """Take memory; OSError when there is no more of it."""
        try:
            with self._lock:
                block = self._blocks.take(nbytes)
        except RunError as error:
            raise OSError(errno.ENOSPC, error.message) from error
        try:
            self._member.reserve(self._start + block, nbytes)
        except OSError:
            with self._lock:
                self._blocks.give_back(block)
            raise
        return Lent(block, self._member.view(self._start + block, nbytes))

    def give_back(self, lent: Lent) -> None:
        """Give memory back; nobody may use it any more."""
        self._member.release(self._start + lent.block, lent.bytes.size)
        with self._lock:
            self._blocks.give_back(lent.block)

    def copies(self, parts: Sequence[Part]) -> tuple[list[Part], list[Lent]]:
        """Give parts that all can read, and what was taken for them. One part is copied once."""
        self._give_back_done()
        found: dict[Part, Lent] = {}
        try:
            for address, nbytes in parts:
                if nbytes and not self.is_shared(address) and (address, nbytes) not in found:
                    lent = found[address, nbytes] = self.take(nbytes)
                    lent.bytes[:] = octets_of(Memory(address, nbytes))
        except OSError:
            self.release(list(found.values()), after=None)
            raise
        there = {part: located(lent.bytes)[0] for part, lent in found.items()}
        return [(there.get(part, part[0]), part[1]) for part in parts], list(found.values())

    def release(self, taken: list[Lent], after: Work | None) -> None:
        """Give back what was taken, when that work is done."""
        if after is not None and taken:
            with self._lock:
                self._held.append((after, taken))
            return
        for lent in taken:
            self.give_back(lent)

    def _give_back_done(self) -> None:
        with self._lock:
            held, self._held = self._held, []
        for work, taken in held:
            self.release(taken, None if work.is_done() else work)
