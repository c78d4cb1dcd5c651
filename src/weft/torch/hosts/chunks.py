"""Chunks of tensors between hosts, and pipelines over them."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

CHUNK = 256 << 10  # bytes: with 8 of them in flight Gloo reaches 1.07x the line rate of 1 Gbit/s
# To a host with one rank, which shares no chunks: fewer context switches during a GEMM.
LONE_CHUNK = 4 << 20
MOST_CHUNKS = 64  # of one tensor; longer tensors have longer chunks
IN_FLIGHT = 4  # blocks between two stages of a pipeline
FIRST_ASKED = 8  # receives that are posted before the first block is forwarded


def as_bytes(x: Tensor) -> Tensor:
    """Return a contiguous tensor as bytes."""
    if x.dtype is torch.uint8 and x.dim() == 1:  # fast path of pieces: a view takes microseconds
        return x
    return x.view(-1).view(torch.uint8)


def chunk_bytes(nbytes: int) -> int:
    """Return the size of the chunks of so many bytes: a multiple of every element size."""
    pages = -(-nbytes // (MOST_CHUNKS << 12))
    return max(CHUNK, pages << 12)


def chunks(x: Tensor, nbytes: int) -> list[Tensor]:
    """Split a contiguous tensor into pieces of so many bytes; an empty one has none."""
    flat = x.view(-1)
    return list(torch.split(flat, max(nbytes // x.element_size(), 1))) if flat.numel() else []


def pipelined(num_blocks: int, stages: Sequence[Callable[[int], None]]) -> None:
    """Run every block through the stages, which are IN_FLIGHT blocks apart.

    The order depends on the numbers only, so it is the same on every rank.
    """
    for tick in range(num_blocks + IN_FLIGHT * (len(stages) - 1)):
        for block, stage in _due(tick, num_blocks, stages):
            stage(block)


def receive_windows(num_blocks: int, most: int) -> Iterator[range]:
    """Yield for every block the receives to post before it is forwarded, at most ``most`` ahead.

    Posting a receive takes 20 us. A few are enough at first, so that the next host does not wait
    for all of them; then two for each block, so that soon the maximum is posted.
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
