"""A collective to be measured: the input of every rank and the output it must have.

Needs numpy alone: the ranks of every peer import it, in environments that lack the rest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]  # float32, or the bits of bfloat16 as uint16: numpy lacks that type
DTYPES = {"float32": 4, "bfloat16": 2}  # bytes of an element
KINDS = ("broadcast", "all_gather", "reduce_scatter", "all_reduce", "all_to_all")
_IN_PLACE = ("broadcast", "all_reduce")
_PERIOD = 31  # a prime: parts of a power of two are told apart by where they came from
_STEP = 7  # by which the values of the next rank are shifted


@dataclass(frozen=True)
class CollectiveCase:
    """One collective of ``nbytes``, counted as nccl-tests does, with small whole numbers.

    They are added up exactly in any order, so a right result is equal to the last bit.
    """

    kind: str
    nbytes: int
    num_ranks: int
    dtype: str = "float32"
    _values: NDArray[np.float32] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        values = np.resize(np.arange(_PERIOD, dtype=np.float32), self.given_count + _PERIOD)
        object.__setattr__(self, "_values", values)

    @property
    def count(self) -> int:
        """Elements of the whole, as nccl-tests counts them."""
        return self.nbytes // self.item_bytes

    @property
    def item_bytes(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.dtype]

    @property
    def given_count(self) -> int:
        """Elements of a rank's input."""
        return self.count // (self.num_ranks if self.kind == "all_gather" else 1)

    @property
    def room(self) -> int:
        """Elements of a rank's output; none where the input is overwritten."""
        if self.kind in _IN_PLACE:
            return 0
        return self.count // (self.num_ranks if self.kind == "reduce_scatter" else 1)

    def given(self, rank: int) -> Floats:
        """Return a rank's input, not to be written to."""
        return self._stored(self._given(rank))

    def _given(self, rank: int) -> NDArray[np.float32]:
        start = _STEP * rank % _PERIOD
        return self._values[start : start + self.given_count]

    def _stored(self, values: NDArray[np.float32]) -> Floats:
        """Return numbers in the dtype; sums of a few of them are exact in bfloat16, too."""
        if self.dtype == "float32":
            return values
        return (values.view(np.uint32) >> 16).astype(np.uint16)

    def count_wrong(self, rank: int, have: Floats) -> int:
        """Count the wrong elements of a rank's output."""
        parts = [self._stored(part) for part in self._wanted(rank)]
        starts = np.cumsum([0, *map(len, parts)])
        assert starts[-1] == len(have)
        places = zip(starts, parts, strict=False)
        return sum(int((have[at : at + len(part)] != part).sum()) for at, part in places)

    def _wanted(self, rank: int) -> Iterator[NDArray[np.float32]]:
        """Yield what a rank must have, in parts that follow each other."""
        everyone = [self._given(r) for r in range(self.num_ranks)]
        match self.kind:
            case "broadcast":
                yield everyone[0]
            case "all_gather":
                yield from everyone
            case "all_to_all":
                yield from (_share(x, rank, self.num_ranks) for x in everyone)
            case "reduce_scatter":
                yield _sum([_share(x, rank, self.num_ranks) for x in everyone])
            case _:
                yield _sum(everyone)


def _share(x: NDArray[np.float32], rank: int, num_ranks: int) -> NDArray[np.float32]:
    each = len(x) // num_ranks
    return x[rank * each : (rank + 1) * each]


def _sum(arrays: list[NDArray[np.float32]]) -> NDArray[np.float32]:
    total: NDArray[np.float32] = arrays[0].copy()
    for array in arrays[1:]:
        total += array
    return total


def collective_case_of(case: dict[str, Any], num_ranks: int) -> CollectiveCase:
    """Read the case that a rank was asked for."""
    return CollectiveCase(case["kind"], case["nbytes"], num_ranks, case.get("dtype", "float32"))


@dataclass(frozen=True)
class RankCall:
    """A collective on one rank: its buffers, the call, and the function that frees them."""

    exchange: CollectiveCase
    rank: int
    x: Floats
    out: Floats
    act: Callable[[], Any]
    free: Callable[[], Any] = lambda: None

    def answer(self) -> int:
        """Run the collective once more and count wrong elements."""
        self.x[:] = self.exchange.given(self.rank)
        self.out.view(np.int8)[:] = -1  # what is not written is wrong
        self.act()
        return self.exchange.count_wrong(self.rank, self.out if self.exchange.room else self.x)


def arrays_of(exchange: CollectiveCase, rank: int) -> tuple[Floats, Floats]:
    """Return ordinary memory of this process for the input, filled, and for the output."""
    x = exchange.given(rank).copy()
    return x, np.zeros(exchange.room, x.dtype)
