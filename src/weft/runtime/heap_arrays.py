"""Arrays in the symmetric heap of a world."""

from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from weft.errors import RunError, UsageError
from weft.runtime.bound_memory import Bindable, address_and_size
from weft.runtime.communicator import DEFAULT_TIMEOUT, Communicator
from weft.runtime.engine_threads import Engines


class HeapCommunicator(Communicator):
    """A communicator whose ranks allocate symmetric arrays."""

    def __init__(
        self,
        name: str,
        rank: int,
        *,
        timeout: float = DEFAULT_TIMEOUT,
        engines: Engines = Engines(),  # noqa: B008 - frozen, so one serves all
    ) -> None:
        super().__init__(name, rank, timeout=timeout, engines=engines)
        self._blocks: dict[int, tuple[int, int]] = {}  # blocks and bytes by address

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike = "float32") -> NDArray[Any]:
        """Return an array that all ranks can reach, at the same offset on all of them.

        Collective: every rank passes the same number of bytes. ``free`` and ``close`` release it.
        """
        kind = np.dtype(dtype)
        lengths = shape if isinstance(shape, tuple) else (index(shape),)
        if min(lengths, default=0) < 0:
            raise UsageError(f"empty: shape must not be negative (got {shape}).")
        nbytes = prod(lengths) * kind.itemsize
        with self.exclusive(f"empty({nbytes} bytes)"):
            self.drain()
            self.agree(f"empty({nbytes} bytes)")
            block = self.blocks.allocate(max(nbytes, 1))
            taken = f"empty({nbytes} bytes) taken"
            if failure := self.attempt(taken, lambda: self.reserve(block, nbytes)):
                self.blocks.free(block)
                raise failure
        for rank in range(self.num_ranks):  # page faults now, not in the first collective
            self.member.populate(self.region(rank) + block, nbytes)
        array: NDArray[Any] = self.member.view(self.region(self.rank) + block, nbytes).view(kind)
        self._blocks[address_and_size(array)[0]] = block, nbytes
        return array.reshape(lengths)

    def free(self, array: Bindable) -> None:
        """Release an array of ``empty``. Collective; the array is invalid afterwards."""
        address, nbytes = address_and_size(array)
        if self._blocks.get(address, (0, -1))[1] != nbytes:
            raise RunError(
                "free: the array was not allocated by empty() of this world.",
                "Pass the array itself, not a view or a copy of it.",
            )
        with self.exclusive(f"free({nbytes} bytes)"):
            self.drain()
            self.agree(f"free({nbytes} bytes)")
            block, _ = self._blocks.pop(address)
            self.member.release(self.region(self.rank) + block, nbytes)
            self.blocks.free(block)
