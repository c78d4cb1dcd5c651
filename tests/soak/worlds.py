"""Worlds made and ended again and again by the same two processes: nothing of them may stay.

``python -m tests.soak.worlds SEED COUNT`` prints a line of JSON for each rank.
"""

from __future__ import annotations

import json
import os
import random
import sys

import numpy as np

import weft
from tests.soak.forks import answers_of
from tests.soak.growth import held
from weft.runtime import World

RANKS = 2
_SAMPLES = 40


def rank_main(rank: int, seed: int, count: int) -> dict[str, object]:
    """Join so many worlds, one after another; return what was wrong and what was held."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(RANKS),
        "LOCAL_WORLD_SIZE": str(RANKS),
        "TORCHELASTIC_RUN_ID": str(seed),
    }
    dice = random.Random(seed)
    wrong, samples = 0, []
    for number in range(count):
        if number % max(count // _SAMPLES, 1) == 0:
            samples.append(held())
        with weft.world(timeout=60) as world:
            wrong += not _use(world, dice.randrange(1, 50_000), later=dice.random() < 0.5)
    return {"worlds": count, "wrong": wrong, "samples": samples}


def _use(world: World, size: int, *, later: bool) -> bool:
    """Sum and gather once; sometimes both at once."""
    x = np.full(size, world.rank + 1.0, np.float32)
    mine, out = np.full(64, world.rank, np.int32), np.empty(64 * RANKS, np.int32)
    work = world.all_reduce(x, async_op=later)
    world.all_gather(out, mine)
    if work is not None:
        work.wait()
    total = RANKS * (RANKS + 1) / 2
    return bool((x == total).all() and (out == np.repeat(np.arange(RANKS), 64)).all())


def main(seed: int, count: int) -> list[str]:
    """Return what the ranks say."""
    return answers_of(RANKS, lambda rank, _: json.dumps(rank_main(rank, seed, count)))


if __name__ == "__main__":
    sys.stdout.write("\n".join(main(*map(int, sys.argv[1:]))))
