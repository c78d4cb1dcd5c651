"""Random models small enough to be trained here: DLRMs and three kinds of transformers.

Models depend on the seed only, not on the machine.
"""

import math
import random
from itertools import pairwise
from typing import Any

from weft.local_runs.synthetic_models import (
    RANKS,
    SyntheticDlrm,
    SyntheticModel,
    SyntheticTransformer,
)

TRANSFORMERS = ("gpt2", "bert", "llama")
# Approximate rates of one core, to choose steps long enough to be measured: GEMMs, memory, ops.
_FLOPS, _BYTES, _OP = 6e10, 6e9, 8e-6
_SHORTEST, _LONGEST = 0.035, 0.25  # seconds by these rates; the shortest is to be 20 ms for sure


def draw(seed: int) -> tuple[SyntheticDlrm, SyntheticTransformer]:
    """Return a random DLRM and a random transformer."""
    return _of_length(_dlrm, seed), _of_length(_transformer, seed)


def rough_seconds(model: SyntheticModel) -> float:
    """Return a rough estimate of the step time by the rates above."""
    if isinstance(model, SyntheticDlrm):
        flops, nbytes, ops = _dlrm_estimate(model)
    else:
        flops, nbytes, ops = _transformer_estimate(model)
    return flops / _FLOPS + nbytes / _BYTES + ops * _OP


def _dlrm_estimate(model: SyntheticDlrm) -> tuple[float, float, int]:
    """Return flops, bytes of rows that are looked up, and ops of one rank and step."""
    vectors = len(model.tables) + 1
    inner = model.bottom[-1] + vectors * (vectors - 1) // 2
    sizes = [(13, *model.bottom), (inner, *model.top)]
    weights = sum(a * b for mlp in sizes for a, b in pairwise(mlp))
    flops = 6.0 * model.batch / RANKS * (weights + vectors**2 * model.dim)
    lookups = sum(pooling for _, pooling, _ in model.tables) * model.batch / RANKS
    num_ops = 20 * (len(model.bottom) + len(model.top)) + 8 * len(model.tables)
    return flops, 5.0 * lookups * model.dim * 4, num_ops


def _transformer_estimate(model: SyntheticTransformer) -> tuple[float, float, int]:
    """Return flops, memory traffic besides GEMMs, and ops of one rank and step."""
    tokens, hidden = model.batch / RANKS * model.seq, model.hidden
    inner = 3 if model.model == "llama" else 2
    weights = model.layers * (4 * hidden**2 + inner * hidden * model.ffn)
    seen = model.layers * 2 * model.seq * hidden
    flops = 6.0 * tokens * (weights + hidden * model.vocab + seen)
    stored = 12 * hidden**2 * model.layers + model.vocab * hidden
    traffic = 4.0 * (tokens * (model.layers * 60 * hidden + 6 * model.vocab) + 20 * stored)
    return flops, traffic, 300 * model.layers


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
