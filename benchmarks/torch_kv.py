"""Blocks gathered by a prepared schedule, by a loop of torch's copies, by one indexed copy."""

import time
from collections.abc import Callable

import numpy as np
import torch

from benchmarks.block_gather import gather_blocks
from weft.runtime import World, prepare

POOL = 4  # times as many blocks as are gathered


def rank_main(
    world: World, num_blocks: int, block_bytes: int, rounds: int
) -> tuple[dict[str, list[float]], int]:
    """Return the seconds of each way by round, and how many bytes differed."""
    torch.set_num_threads(1)
    numbers = np.random.default_rng(0).permutation(num_blocks * POOL)[:num_blocks].tolist()
    prepared = prepare(gather_blocks(numbers, block_bytes, num_blocks * POOL), world)
    pool, cache = prepared.buffer("pool"), prepared.buffer("cache")
    pool[:] = np.random.default_rng(1).integers(0, 256, len(pool), dtype=np.uint8)
    blocks = torch.from_numpy(pool).view(-1, block_bytes)
    copied = torch.zeros(num_blocks, block_bytes, dtype=torch.uint8)
    indices = torch.tensor(numbers)

    def loop() -> None:
        for index, number in enumerate(numbers):
            copied[index].copy_(blocks[number])

    def indexed() -> None:
        torch.index_select(blocks, 0, indices, out=copied)

    ways: dict[str, Callable[[], object]] = {
        "weft": prepared.run,
        "copy_": loop,
        "index_select": indexed,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, way in ways.items():
            seconds = _seconds(way)
            if turn:  # the first touches everything for the first time
                times[name].append(seconds)
    return times, int((copied.numpy().ravel() != cache).sum())


def _seconds(way: Callable[[], object]) -> float:
    begin = time.perf_counter()
    way()
    return time.perf_counter() - begin
