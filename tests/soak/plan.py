"""What is asked for, step by step: drawn from one seed, so the same on every rank."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

from tests.soak.values import MOVED, REDUCED, Ask, item_bytes

KINDS = {
    "all_reduce": 20,
    "all_gather": 14,
    "broadcast": 12,
    "reduce_scatter": 12,
    "all_to_all": 10,
    "exchange": 8,
    "message": 10,
    "reduce": 6,
    "gather": 4,
    "scatter": 4,
    "barrier": 2,
}
REDUCES = ("all_reduce", "reduce_scatter", "reduce")
ALGORITHMS = {
    "all_reduce": ("ring", "direct", "tree", "halving-doubling"),
    "all_gather": ("ring", "direct", "dma", "dma-bcst", "dma+prelaunch"),
    "reduce_scatter": ("ring", "direct"),
    "all_to_all": ("direct", "dma", "dma-b2b"),
    "broadcast": ("tree", "binomial", "chain", "scatter-allgather"),
}
WHERE = {"world": 40, "torch": 34, "group": 10, "torch group": 10, "prepared": 6}
SIZES = {0: 3, 64: 40, 8 << 10: 34, 64 << 10: 15, 1 << 20: 8}  # bytes at most: how often
_NEW = 0.04  # of all calls: most repeat what was asked before


class Step(NamedTuple):
    """One call, where, and whether it is waited for later."""

    where: str
    ask: Ask
    later: bool
    seed: int


class Plan:
    """Draws steps. ``ranks`` is how many take part, by place; ``asks`` how many calls repeat."""

    def __init__(
        self, seed: int, ranks: dict[str, int], *, asks: int = 40, largest: int = 1 << 20
    ) -> None:
        self._random = random.Random(seed)
        self._ranks = ranks
        self._where = {where: often for where, often in WHERE.items() if where in ranks}
        self._sizes = {most: often for most, often in SIZES.items() if most <= largest}
        self._num_asks = asks
        self._asks: dict[str, list[Ask]] = {where: [] for where in ranks}

    def draw(self) -> Step:
        roll = self._random
        where = self._one_of(self._where)
        return Step(where, self._ask(where), roll.random() < 0.4, roll.randrange(1 << 30))

    def _ask(self, where: str) -> Ask:
        asks = self._asks[where]
        if len(asks) < self._num_asks or self._random.random() < _NEW:
            ask = self._new(where)
            if len(asks) < self._num_asks:
                asks.append(ask)
            else:
                asks[self._random.randrange(len(asks))] = ask
            return ask
        return self._random.choice(asks)

    def _new(self, where: str) -> Ask:
        roll, num_ranks = self._random, self._ranks[where]
        kind = self._one_of(KINDS)
        while where == "prepared" and kind not in ALGORITHMS:
            kind = self._one_of(KINDS)
        dtype, op = roll.choice(REDUCED) if kind in REDUCES else (roll.choice(MOVED), "")
        named = where == "prepared" or (where == "world" and roll.random() < 0.2)
        algorithm = roll.choice(ALGORITHMS[kind]) if named and kind in ALGORITHMS else ""
        if where == "world" and kind == "all_gather" and algorithm.startswith("dma"):
            algorithm = "ring"  # engines gather in place: only a prepared schedule does that
        if algorithm and (op == "avg" or op.startswith("premul")):
            op = "sum"  # they need all sources at once
        if algorithm and op == "prod" and dtype.startswith("complex"):
            op = "sum"  # the sign of a zero depends on the order of factors
        if where.startswith("torch") and dtype.startswith("complex") and op == "prod":
            op = "sum"  # torch refuses it before weft sees it
        parts = 1 if kind in ("all_reduce", "broadcast", "reduce", "message") else num_ranks
        count = self._nbytes() // parts // item_bytes(dtype)
        return Ask(kind, count, dtype, op, roll.randrange(num_ranks), algorithm)

    def _nbytes(self) -> int:
        most = self._one_of(self._sizes)
        return self._random.randint(most // 8, most)

    def _one_of(self, weights: dict[Any, int]) -> Any:
        return self._random.choices(list(weights), list(weights.values()))[0]
