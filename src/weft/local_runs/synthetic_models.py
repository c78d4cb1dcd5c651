"""Random models small enough to be trained here: DLRMs and three kinds of transformers.

Uses only the standard library. Models depend on the seed only, not on the machine.
"""

import math
import random
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

RANKS = 2
TRANSFORMERS = ("gpt2", "bert", "llama")
# Approximate rates of one core, to choose steps long enough to be measured: GEMMs, memory, ops.
_FLOPS, _BYTES, _OP = 6e10, 6e9, 8e-6
_SHORTEST, _LONGEST = 0.035, 0.25  # seconds by these rates; the shortest is to be 20 ms for sure


@dataclass(frozen=True)
class SyntheticDlrm:
    """A DLRM: tables of (rows, pooling, zipf) of one dim, MLPs, samples of the whole job."""

    tables: tuple[tuple[int, int, float], ...]
    dim: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    batch: int
    seed: int = 0
    model: str = "dlrm"

    @property
    def flops(self) -> float:
        """Flops of one rank and step, forward and backward."""
        vectors = len(self.tables) + 1
        inner = self.bottom[-1] + vectors * (vectors - 1) // 2
        sizes = [(13, *self.bottom), (inner, *self.top)]
        weights = sum(a * b for mlp in sizes for a, b in pairwise(mlp))
        return 6.0 * self.batch / RANKS * (weights + vectors**2 * self.dim)

    @property
    def nbytes(self) -> float:
        """Bytes of rows that one rank looks up, forward and backward."""
        lookups = sum(pooling for _, pooling, _ in self.tables) * self.batch / RANKS
        return 5.0 * lookups * self.dim * 4

    @property
    def num_ops(self) -> int:
        """The approximate number of ops of a rank."""
        return 20 * (len(self.bottom) + len(self.top)) + 8 * len(self.tables)


@dataclass(frozen=True)
class SyntheticTransformer:
    """A transformer: its sizes, and the sequences of the whole job."""

    model: str
    hidden: int
    layers: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    batch: int
    kv_heads: int = 0
    seed: int = 0

    @property
    def flops(self) -> float:
        """Flops of one rank and step, forward and backward."""
        tokens = self.batch / RANKS * self.seq
        inner = 3 if self.model == "llama" else 2
        weights = self.layers * (4 * self.hidden**2 + inner * self.hidden * self.ffn)
        seen = self.layers * 2 * self.seq * self.hidden
        return 6.0 * tokens * (weights + self.hidden * self.vocab + seen)

    @property
    def nbytes(self) -> float:
        """Memory traffic besides GEMMs: activations, vocabulary scores, weights."""
        tokens = self.batch / RANKS * self.seq
        weights = 12 * self.hidden**2 * self.layers + self.vocab * self.hidden
        return 4.0 * (tokens * (self.layers * 60 * self.hidden + 6 * self.vocab) + 20 * weights)

    @property
    def num_ops(self) -> int:
        """The approximate number of ops of a rank."""
        return 300 * self.layers


SyntheticModel = SyntheticDlrm | SyntheticTransformer


def draw(seed: int) -> tuple[SyntheticDlrm, SyntheticTransformer]:
    """Return a random DLRM and a random transformer."""
    return _of_length(_dlrm, seed), _of_length(_transformer, seed)


def rough_seconds(model: SyntheticModel) -> float:
    """Return a rough estimate of the step time by the rates above."""
    return model.flops / _FLOPS + model.nbytes / _BYTES + model.num_ops * _OP


def _of_length(made: Any, seed: int) -> Any:
    """Draw models until the step time is in the wanted range."""
    dice = random.Random(f"{made.__name__} {seed}")  # noqa: S311 - the same each time
    while True:
        found = made(dice, seed)
        if _SHORTEST <= rough_seconds(found) <= _LONGEST:
            return found


def _dlrm(dice: random.Random, seed: int) -> SyntheticDlrm:
    dim = dice.choice((16, 32, 64, 128))
    tables = tuple(
        (
            int(10 ** dice.uniform(3.5, 5.7)),
            dice.choice((1, 2, 4, 8, 16, 20, 32)),
            dice.choice((0.0, 0.8, 1.05)),
        )
        for _ in range(dice.randrange(4, 17))
    )
    bottom = (*_widths(dice, dice.randrange(1, 4)), dim)
    top = (*_widths(dice, dice.randrange(2, 5)), 1)
    return SyntheticDlrm(tables, dim, bottom, top, dice.choice((256, 512, 1024, 2048, 4096)), seed)


def _widths(dice: random.Random, count: int) -> tuple[int, ...]:
    return tuple(sorted(dice.choice((64, 128, 256, 512, 1024)) for _ in range(count))[::-1])


def _transformer(dice: random.Random, seed: int) -> SyntheticTransformer:
    heads, head = dice.choice((2, 4, 6, 8)), dice.choice((32, 64))
    hidden, model = heads * head, dice.choice(TRANSFORMERS)
    ffn = hidden * 4 if model != "llama" else 32 * math.ceil(hidden * 8 / 3 / 32)
    return SyntheticTransformer(
        model,
        hidden,
        dice.randrange(2, 7),
        heads,
        ffn,
        dice.choice((1024, 2048, 4096, 8192)),
        dice.choice((64, 128, 256)),
        RANKS * dice.choice((1, 2, 4, 8)),
        heads // 2 if model == "llama" else heads,
        seed,
    )


def case_of(model: SyntheticModel) -> dict[str, Any]:
    """Return a model as a case of a row, and as ranks are asked for it."""
    return asdict(model)


def model_of(case: dict[str, Any]) -> SyntheticModel:
    """Parse what ``case_of`` returned, also after a JSON round trip."""
    if case["model"] != "dlrm":
        return SyntheticTransformer(**case)
    lists = {key: tuple(case[key]) for key in ("bottom", "top")}
    tables = tuple((int(r), int(p), float(z)) for r, p, z in case["tables"])
    return SyntheticDlrm(**{**case, **lists, "tables": tables})
