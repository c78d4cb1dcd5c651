"""Ranks that run the fused kernels in Triton's interpreter on shared memory, and compare.

``python -m tests.fused.triton_ranks FOLDER EPOCHS CASE..``: every operator runs EPOCHS times.
Outputs hold NaN before each, ranks and flags are delayed at random, epochs cross the end of int32.
"""

import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from triton._C.libtriton.ir import MEM_SEMANTIC
from triton.runtime.interpreter import InterpreterBuilder

from weft.fused import triton_configs as configs
from weft.fused import triton_launch as launch
from weft.fused.torch_symmetric_tensors import SharedFileMemory
from weft.fused.triton_launch import RowSegment, TableRows

RANKS = 3
MAX_POLLS = 10**6  # polls; one takes tens of microseconds here
ROWS = 11
LAST = (1 << 31) - 1  # of int32


class Lookups(NamedTuple):
    """Samples of every rank; dims and first columns of its tables."""

    samples: list[int]
    dims: list[list[int]]
    columns: list[list[int]]

    @property
    def width(self) -> int:
        return sum(map(sum, self.dims))


USUAL = Lookups([5, 7, 2], [[6, 3], [], [4]], [[0, 6], [], [9]])
LEAST = Lookups([1, 1, 1], [[2], [], [1]], [[0], [], [2]])


def delay_atomics(rank: int) -> None:
    """Delay some atomics, so that ranks and their flags interleave anew."""
    chance, plain = random.Random(rank), InterpreterBuilder.create_atomic_rmw

    def late(self: Any, op: Any, ptr: Any, value: Any, mask: Any, sem: Any, scope: Any) -> Any:
        if chance.random() < 0.02:
            time.sleep(chance.random() * 1e-3)
        if sem == MEM_SEMANTIC.ACQUIRE:  # a poll: others run meanwhile, on fewer cores than ranks
            time.sleep(5e-4)
        return plain(self, op, ptr, value, mask, sem, scope)

    InterpreterBuilder.create_atomic_rmw = late


def bags(of: Lookups, rank: int, epoch: int) -> list[TableRows]:
    """The tables of a rank, and bags for the samples of all ranks."""
    drawn = torch.Generator().manual_seed(1000 * epoch + rank)
    found = []
    for dim, column in zip(of.dims[rank], of.columns[rank], strict=True):
        lengths = torch.randint(0, 4, (sum(of.samples),), generator=drawn)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
        indices = torch.randint(0, ROWS, (int(offsets[-1]),), generator=drawn)
        rows = torch.randn(ROWS, dim, generator=drawn)
        found.append(TableRows(rows, indices, offsets, column))
    return found


def pooled(of: Lookups, epoch: int, rank: int) -> torch.Tensor:
    """The output of a rank."""
    want = torch.zeros(sum(of.samples), of.width)
    for holder in range(RANKS):
        for table in bags(of, holder, epoch):
            dim = table.rows.shape[1]
            mean = torch.nn.functional.embedding_bag(
                table.indices, table.rows, table.offsets[:-1], mode="sum"
            )
            want[:, table.column : table.column + dim] = mean
    first = sum(of.samples[:rank])
    return want[first : first + of.samples[rank]]


def embedding(of: Lookups, rank: int, folder: Path, epochs: int) -> None:
    memory = SharedFileMemory(folder, rank, RANKS)
    first = LAST - epochs // 2
    operator = launch.EmbeddingAllToAllOperator(
        memory, of.samples, of.width, slice_samples=4, epoch=first
    )
    holders = [each for each in range(RANKS) if of.dims[each]]
    for epoch in range(epochs):
        operator.output.fill_(torch.nan)
        tables = bags(of, rank, epoch)
        config = configs.EmbeddingConfig(bags=(4, 2, 1)[epoch % 3], unroll=1 + epoch % 3)
        operator.launch(tables, config=config, max_polls=MAX_POLLS)
        for part in range(operator.num_slices):
            operator.finish_slice(part, holders, max_polls=MAX_POLLS)
        operator.check()
        want = pooled(of, epoch, rank)
        assert torch.allclose(operator.output, want, atol=1e-5), (rank, epoch)


def gemv(rank: int, folder: Path, epochs: int, features: int = 11) -> None:
    tokens, columns = 2, 10  # 22 rows on 3 ranks: a remainder
    memory = SharedFileMemory(folder, rank, RANKS)
    config = configs.GemvConfig(block_rows=4, block_columns=8)
    first = LAST - epochs // 2
    operator = launch.GemvAllReduceOperator(memory, tokens, features, config=config, epoch=first)

    def factors(of: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor]:
        drawn = torch.Generator().manual_seed(100 * epoch + of)
        matrix = torch.randn(features, columns, generator=drawn)
        return matrix, torch.randn(tokens, columns, generator=drawn)

    for epoch in range(epochs):
        found = operator.run(*factors(rank, epoch), max_polls=MAX_POLLS)
        operator.check()
        of_all = [factors(each, epoch) for each in range(RANKS)]
        want = torch.stack([x @ a.t() for a, x in of_all]).sum(0)
        assert torch.allclose(found, want, atol=1e-4), (rank, epoch)


def gemm(rank: int, folder: Path, epochs: int) -> None:
    columns, inner, experts = 24, 20, 2
    memory = SharedFileMemory(folder, rank, RANKS)
    config = configs.GemmConfig(block_m=16, block_n=16, block_k=16)
    first = LAST - epochs // 2
    operator = launch.GemmAllToAllOperator(
        memory, 200, columns, torch.float32, slices=2, epoch=first
    )

    def case(of: int, epoch: int) -> tuple[torch.Tensor, torch.Tensor, list[list[int]]]:
        drawn = torch.Generator().manual_seed(100 * epoch + of)
        counts = torch.randint(0, 25, (RANKS, experts), generator=drawn)
        a = torch.randn(int(counts.sum()), inner, generator=drawn)
        return a, torch.randn(experts, columns, inner, generator=drawn), counts.tolist()

    for epoch in range(epochs):
        operator.outputs.mine.fill_(torch.nan)
        cases = [case(of, epoch) for of in range(RANKS)]
        a, b, counts = cases[rank]
        segments, row = [], 0
        for target in range(RANKS):
            place = sum(sum(cases[of][2][target]) for of in range(rank))
            for expert in range(experts):
                count = counts[target][expert]
                segments.append(RowSegment(target, row, count, expert, place))
                row, place = row + count, place + count
        operator.launch(a, b.transpose(1, 2), segments, config=config, max_polls=MAX_POLLS)
        slices = [operator.slices_of(cases[of][2][rank], config.block_m) for of in range(RANKS)]
        found = operator.finish(slices, max_polls=MAX_POLLS)
        operator.check()
        want = []
        for x, y, theirs in cases:
            start = sum(sum(each) for each in theirs[:rank])
            for expert in range(experts):
                rows = x[start : start + theirs[rank][expert]]
                want.append(rows @ y[expert].t())
                start += theirs[rank][expert]
        everything = torch.cat(want)
        assert torch.allclose(found[: len(everything)], everything, atol=1e-4), (rank, epoch)
        assert bool(found[len(everything) :].isnan().all()), (rank, epoch)


def rank_main(rank: int, folder: str, epochs: int, names: Sequence[str]) -> None:
    torch.set_num_threads(1)
    delay_atomics(rank)
    store = dist.FileStore(f"{folder}/store", RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    cases: dict[str, Callable[[Path, int], None]] = {
        "stores": partial(embedding, USUAL, rank),
        "gemv": partial(gemv, rank),
        "gemm": partial(gemm, rank),
        "least-stores": partial(embedding, LEAST, rank),
        "least-gemv": partial(gemv, rank, features=2),
    }
    for name in names:
        cases[name](Path(folder) / name, epochs)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    spawn(rank_main, (sys.argv[1], int(sys.argv[2]), sys.argv[3:]), RANKS)
    sys.stdout.write("equal\n")
