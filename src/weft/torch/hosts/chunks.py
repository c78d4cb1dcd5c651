"""Cutting tensors into what crosses a wire at once, and stages that overlap."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

CHUNK = 256 << 10  # bytes: with 8 of them in flight Gloo reaches 1.07x the line rate of 1 Gbit/s
LONE_CHUNK = (
    4 << 20
)  # to a rank that shares none: fewer switches beside a GEMM than with shorter ones
MOST_CHUNKS = 64  # of one tensor: a longer one is cut into longer chunks
IN_FLIGHT = 4  # blocks between two stages of a pipeline
FIRST_ASKED = 8  # receives that are asked for before the first block is passed on


def as_bytes(x: Tensor) -> Tensor:
    """Give a contiguous tensor's bytes."""
    if x.dtype is torch.uint8 and x.dim() == 1:  # pieces are: making views costs microseconds
        return x
    return x.view(-1).view(torch.uint8)


def chunk_bytes(nbytes: int) -> int:
    """Give how long the chunks of so many bytes are; a multiple of every element's size."""
    pages = -(-nbytes // (MOST_CHUNKS << 12))
    return max(CHUNK, pages << 12)


def chunks(x: Tensor, nbytes: int) -> list[Tensor]:
    """Cut a contiguous tensor into pieces of so many bytes; an empty one has none."""
    flat = x.view(-1)
    return list(torch.split(flat, max(nbytes // x.element_size(), 1))) if flat.numel() else []


def pipelined(num_blocks: int, stages: Sequence[Callable[[int], None]]) -> None:
    """Let every block pass the stages, which are as many blocks apart as are in flight.

    The order depends on nothing but the numbers, so it is the same on every rank.
    """
    for tick in range(num_blocks + IN_FLIGHT * (len(stages) - 1)):
        for block, stage in _due(tick, num_blocks, stages):
            stage(block)


def receive_windows(num_blocks: int, most: int) -> Iterator[range]:
    """Say for every block which receives to ask for before it is passed on; ``most`` ahead of it.

    A receive takes 20 us to ask for. A few are enough to begin with, so that the next host does not
    wait for all of them; then two for each block, so that soon as many as allowed are asked for.
    """
    asked = 0
    for block in range(num_blocks):
        until = min(num_blocks, block + max(most, 1), FIRST_ASKED + 2 * block)
        yield range(asked, until)
        asked = until


def _due(
    tick: int, num_blocks: int, stages: Sequence[Callable[[int], None]]
) -> Iterator[tuple[int, Callable[[int], None]]]:
    for number, stage in enumerate(stages):
        block = tick - number * IN_FLIGHT
        if 0 <= block < num_blocks:
            yield block, stage
