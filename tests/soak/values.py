"""What every rank puts into a collective, by seed, and what it must find afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.runtime.test_world import COMBINATIONS, OPS

SMALL = ("bfloat16", "float8_e4m3fn", "float8_e5m2")  # numpy has none of them
REDUCED = (
    *COMBINATIONS,
    *(("bfloat16", op) for op in ("sum", "min", "max", "premul:0.5")),
    *((dtype, op) for dtype in SMALL[1:] for op in ("sum", "min", "max")),
)
MOVED = tuple(dict.fromkeys(dtype for dtype, _ in REDUCED))
_POOL = 1 << 21  # elements that a rank draws from
Array = Any  # of numpy: whatever it holds, it is compared as bytes


@dataclass(frozen=True)
class Ask:
    """What all ranks ask alike. ``count`` is the elements of a part."""

    kind: str
    count: int
    dtype: str
    op: str = ""
    root: int = 0
    algorithm: str = ""


class Case(NamedTuple):
    """This rank's side of an Ask: parts that it gives and parts that it wants, as bytes."""

    given: list[Array]
    wanted: list[Array]


@cache
def _pool(rank: int) -> Array:
    return np.random.default_rng([rank, 77]).integers(-4, 4, _POOL, np.int8)


def item_bytes(dtype: str) -> int:
    return int(getattr(torch, dtype).itemsize)


def numbers(rank: int, start: int, count: int, dtype: str) -> Array:
    """Numbers so small that no sum or product of four ranks is rounded."""
    begin = start % (_POOL - (1 << 20))
    drawn = _pool(rank)[begin : begin + count]
    if dtype in SMALL:
        return np.sign(drawn).astype(np.float32)
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return drawn.astype(kind) / kind.type(4)
    if kind.kind == "c":
        return (drawn + 1j * drawn[::-1]).astype(kind)
    return (drawn & 1 if kind.kind == "b" else drawn).astype(kind)


def as_bytes(values: Array, dtype: str) -> Array:
    """The values as a rank's memory holds them."""
    if dtype in SMALL:
        rounded = torch.from_numpy(values).to(getattr(torch, dtype))
        return rounded.view(torch.uint8).numpy() if values.size else np.empty(0, np.uint8)
    return np.ascontiguousarray(values).view(np.uint8)


def case_of(ask: Ask, num_ranks: int, me: int, seed: int) -> Case:
    """Return what rank ``me`` gives and wants."""
    ranks = range(num_ranks)

    def part(rank: int, number: int = 0, count: int | None = None) -> Array:
        size = ask.count if count is None else count
        return numbers(rank, seed * 7919 + number * 10007, size, ask.dtype)

    def reduced(number: int = 0) -> Array:
        return OPS[ask.op](np.stack([part(rank, number) for rank in ranks]))

    def between(sender: int, taker: int) -> Array:
        return part(sender, taker, uneven(ask, sender, taker))

    at_root = me == ask.root
    given, wanted = {
        "barrier": lambda: ([], []),
        "all_gather": lambda: ([part(me)], [part(r) for r in ranks]),
        "gather": lambda: ([part(me)], [part(r) for r in ranks] if at_root else []),
        "scatter": lambda: ([part(me, r) for r in ranks] if at_root else [], [part(ask.root, me)]),
        "broadcast": lambda: ([part(me)], [part(ask.root)]),
        "all_reduce": lambda: ([part(me)], [reduced()]),
        "reduce": lambda: ([part(me)], [reduced() if at_root else part(me)]),
        "reduce_scatter": lambda: ([part(me, r) for r in ranks], [reduced(me)]),
        "all_to_all": lambda: ([part(me, r) for r in ranks], [part(r, me) for r in ranks]),
        "exchange": lambda: ([between(me, r) for r in ranks], [between(r, me) for r in ranks]),
        "message": lambda: ([part(me)], [part((me - hop(ask, num_ranks)) % num_ranks)]),
    }[ask.kind]()
    return Case(*([as_bytes(each, ask.dtype) for each in side] for side in (given, wanted)))


def hop(ask: Ask, num_ranks: int) -> int:
    """How far a message goes, in ranks."""
    return 1 + ask.root % (num_ranks - 1)


def uneven(ask: Ask, sender: int, taker: int) -> int:
    """How many elements one rank gives another in an exchange."""
    return ask.count * ((sender + 2 * taker + ask.count) % 4) // 2
