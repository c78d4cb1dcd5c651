"""Ranks that run the fused kernels in Triton's interpreter on shared memory, and compare."""

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch.multiprocessing.spawn import spawn

from weft.fused import triton_launch as launch
from weft.fused.torch_proxy import Outbox, in_background, send_slices, take_slices
from weft.fused.triton_launch import Peers

RANKS = 3
PATIENCE = 10**6  # looks at a flag; one takes microseconds here
SAMPLES, SLICE, DIM, TABLES, ROWS = 5, 2, 6, 2, 11


class Shared:
    """A buffer that every rank has and every rank can store into."""

    def __init__(self, folder: Path, name: str, shape: tuple[int, ...], dtype: str) -> None:
        paths = [folder / f"{name}{rank}" for rank in range(RANKS)]
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        for path in paths:
            with path.open("ab") as file:
                file.truncate(size)
        self.maps: list[NDArray[Any]] = [
            np.memmap(path, dtype=dtype, mode="r+", shape=shape) for path in paths
        ]

    def addresses(self, near: list[bool] | None = None) -> torch.Tensor:
        here = [each.ctypes.data for each in self.maps]
        kept = near or [True] * RANKS
        return torch.tensor([a if is_near else 0 for a, is_near in zip(here, kept, strict=True)])

    def mine(self, rank: int) -> torch.Tensor:
        return torch.from_numpy(np.asarray(self.maps[rank]))


def lookups(rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The tables of a rank, and bags for the samples of all ranks: indices and offsets."""
    made = torch.Generator().manual_seed(rank)
    weights = torch.randn(TABLES * ROWS, DIM, generator=made)
    lengths = torch.randint(0, 4, (TABLES * RANKS * SAMPLES,), generator=made)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(0, ROWS, (int(offsets[-1]),), generator=made)
    return weights, indices, offsets


def pooled(rank: int) -> torch.Tensor:
    """What a rank looks up: [table, sample of any rank, dim]."""
    weights, indices, offsets = lookups(rank)
    bags = TABLES * RANKS * SAMPLES
    table = torch.repeat_interleave(torch.arange(bags) // (RANKS * SAMPLES), offsets.diff())
    found = torch.zeros(bags, DIM).index_add_(
        0,
        torch.repeat_interleave(torch.arange(bags), offsets.diff()),
        weights[indices + table * ROWS],
    )
    return found.view(TABLES, RANKS * SAMPLES, DIM)


def embedding(rank: int, folder: Path, *, near: list[bool]) -> None:
    out = Shared(folder, "out", (SAMPLES, RANKS * TABLES, DIM), "float32")
    flags = Shared(folder, "flags", (RANKS,), "int32")
    dist.barrier()
    weights, indices, offsets = lookups(rank)
    slices = -(-SAMPLES // SLICE)
    far = [peer for peer in range(RANKS) if not near[peer]]
    outbox = Outbox(slices * RANKS)
    leaving = torch.zeros(RANKS, SAMPLES, TABLES, DIM)
    mine = out.mine(rank)

    def leaves(target: int, part: int) -> torch.Tensor:
        return leaving[target, part * SLICE : (part + 1) * SLICE]

    waits = [in_background(lambda: send_slices(outbox, len(far) * slices, leaves, timeout=60))]
    for sender in far:
        columns = mine[:, sender * TABLES : (sender + 1) * TABLES]
        flag = flags.mine(rank)[sender : sender + 1]
        waits.append(
            in_background(partial(take_slices, sender, slices, partial(rows, columns), flag))
        )
    peers = Peers(rank, out.addresses(near), flags.addresses(), outbox, leaving)
    tables = weights, torch.arange(TABLES + 1) * ROWS
    place = rank * TABLES, RANKS * TABLES
    wrong = launch.embedding_all_to_all(
        tables, (indices, offsets), peers, place, slice_samples=SLICE
    )
    settle(flags, rank, [slices] * RANKS)
    for wait in waits:
        wait()
    want = torch.cat([pooled(r)[:, rank * SAMPLES : (rank + 1) * SAMPLES] for r in range(RANKS)])
    assert not wrong.item()
    assert torch.allclose(mine, want.transpose(0, 1), atol=1e-6), rank


def rows(columns: torch.Tensor, part: int) -> torch.Tensor:
    """Where slice ``part`` lies in the columns of its sender."""
    return columns[part * SLICE : (part + 1) * SLICE]


def settle(flags: Shared, rank: int, counts: list[int]) -> None:
    """Wait for the flags of a rank, as a consumer on a GPU does."""
    late = launch.wait_for(
        flags.mine(rank), torch.tensor(counts, dtype=torch.int32), patience=PATIENCE
    )
    assert not late.item(), f"flag {late.item() - 1} of rank {rank}"


def gemv(rank: int, folder: Path) -> None:
    part, columns = 8, 10
    slots = Shared(folder, "slots", (RANKS, part), "float32")
    results = Shared(folder, "results", (RANKS * part,), "float32")
    flags = Shared(folder, "gemv", (2,), "int32")
    dist.barrier()

    def factors(of: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.Generator().manual_seed(10 + of)
        shape = (RANKS * part, columns)
        return torch.randn(shape, generator=made), torch.randn(columns, generator=made)

    matrix, vector = factors(rank)
    peers = Peers(rank, results.addresses(), flags.addresses(), Outbox(1), torch.zeros(1))
    late = launch.gemv_all_reduce(
        matrix,
        vector,
        slots.addresses(),
        peers,
        block_rows=4,
        block_columns=8,
        patience=PATIENCE,
    )
    settle(flags, rank, [RANKS, RANKS])
    assert not late.item()
    want = torch.stack([a @ x for a, x in map(factors, range(RANKS))]).sum(0)
    assert torch.allclose(results.mine(rank), want, atol=1e-5), rank


def gemm(rank: int, folder: Path) -> None:
    rows, columns, inner = 20, 24, 20
    out = Shared(folder, "tiles", (RANKS, rows, columns), "float32")
    flags = Shared(folder, "gemm", (RANKS,), "int32")
    dist.barrier()

    def factors(of: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.Generator().manual_seed(20 + of)
        a = torch.randn(RANKS * rows, inner, generator=made)
        return a, torch.randn(inner, columns, generator=made)

    a, b = factors(rank)
    peers = Peers(rank, out.addresses(), flags.addresses(), Outbox(1), torch.zeros(1))
    launch.gemm_all_to_all(a, b, peers, tile=(16, 16, 16))
    settle(flags, rank, [2] * RANKS)
    for sender in range(RANKS):
        x, y = factors(sender)
        want = x[rank * rows : (rank + 1) * rows] @ y
        assert torch.allclose(out.mine(rank)[sender], want, atol=1e-4), (rank, sender)


def be_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    alone = RANKS - 1  # a rank on a node of its own
    cases: dict[str, Callable[[Path], None]] = {
        "stores": lambda path: embedding(rank, path, near=[True] * RANKS),
        "proxy": lambda path: embedding(
            rank, path, near=[(peer == alone) == (rank == alone) for peer in range(RANKS)]
        ),
        "gemv": lambda path: gemv(rank, path),
        "gemm": lambda path: gemm(rank, path),
    }
    for name, case in cases.items():
        path = Path(folder) / name
        path.mkdir(exist_ok=True)
        case(path)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    spawn(be_rank, (sys.argv[1],), RANKS)
    sys.stdout.write("equal\n")
