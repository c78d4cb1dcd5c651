"""Ranks that run Triton kernels in the interpreter on symmetric memory of CPU tensors."""

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import triton
import triton.language as tl
from torch.multiprocessing.spawn import spawn

import weft.torch  # noqa: F401 - CPU tensors in symmetric memory

RANKS, COUNT, BLOCK = 2, 300, 128
CPU: Any = "cpu"  # torch takes names as well as devices


@triton.jit
def barrier(pads: Any, channel: Any, rank: tl.constexpr, size: tl.constexpr) -> None:
    """Meet the other ranks: put a signal on each pad, take one of each from ours."""
    addresses = pads.to(tl.pointer_type(tl.int64))
    for peer in range(size):
        if peer != rank:
            pad = tl.load(addresses + peer).to(tl.pointer_type(tl.int32))
            while tl.atomic_cas(pad + channel * size + rank, 0, 1, sem="release", scope="sys") != 0:
                pass
    mine = tl.load(addresses + rank).to(tl.pointer_type(tl.int32))
    for peer in range(size):
        if peer != rank:
            while (
                tl.atomic_cas(mine + channel * size + peer, 1, 0, sem="acquire", scope="sys") != 1
            ):
                pass


@triton.jit
def all_reduce(
    buffers: Any,
    pads: Any,
    out: Any,
    count: Any,
    rank: tl.constexpr,
    size: tl.constexpr,
    block: tl.constexpr,
) -> None:
    """Sum the buffers of all ranks; every program meets its peers on its own channel."""
    program = tl.program_id(0)
    barrier(pads, program, rank, size)
    places = program * block + tl.arange(0, block)
    inside = places < count
    addresses = buffers.to(tl.pointer_type(tl.int64))
    total = tl.zeros((block,), tl.float32)
    for peer in range(size):
        there = tl.load(addresses + peer).to(tl.pointer_type(tl.float32))
        total += tl.load(there + places, inside, 0.0)
    tl.store(out + places, total, inside)
    barrier(pads, program, rank, size)


def on_rank(rank: int, path: str) -> None:
    store = dist.FileStore(path, RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("weft", store=store, rank=rank, world_size=RANKS)
    t = symm_mem.empty(COUNT, dtype=torch.float32, device=CPU)
    group: Any = dist.group.WORLD
    hdl: Any = symm_mem.rendezvous(t, group)
    out = torch.zeros(COUNT)
    for step in range(3):
        t.copy_(torch.arange(COUNT) * (rank + 1.0) + step)
        grid = (triton.cdiv(COUNT, BLOCK),)
        all_reduce[grid](
            hdl.buffer_ptrs_dev, hdl.signal_pad_ptrs_dev, out, COUNT, rank, RANKS, BLOCK
        )
        assert torch.equal(out, torch.arange(COUNT) * 3.0 + 2 * step), (rank, step)
    dist.destroy_process_group()


if __name__ == "__main__":
    spawn(on_rank, (sys.argv[1],), RANKS)
    sys.stdout.write("equal\n")
