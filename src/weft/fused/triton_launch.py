"""Launches fused kernels: on CPU tensors in Triton's interpreter, on a GPU in peer memory.

``symmetric`` finds the memory of other GPUs through torch's symmetric memory. That path has not
been run on hardware yet; everything else here runs in the tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import torch
import triton

from weft.fused import triton_kernels as kernels

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from weft.fused.torch_proxy import Outbox


@dataclass(frozen=True)
class Peers:
    """The addresses of every rank's output and flags; 0 for a rank that stores cannot reach.

    ``leaving`` holds the data for those ranks, for a proxy that polls ``outbox``.
    """

    rank: int
    outputs: torch.Tensor  # int64, one address per rank
    flags: torch.Tensor
    outbox: Outbox
    leaving: torch.Tensor

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return len(self.outputs)


def symmetric(
    shape: tuple[int, ...], group: ProcessGroup, **kind: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return a buffer that every rank of ``group`` has, and the addresses of all of them."""
    from torch.distributed import _symmetric_memory as memory

    mine = memory.empty(shape, **kind)
    handle = memory.rendezvous(mine, group)
    return mine, torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=mine.device)


def embedding_all_to_all(
    tables: tuple[torch.Tensor, torch.Tensor],
    bags: tuple[torch.Tensor, torch.Tensor],
    peers: Peers,
    place: tuple[int, int],
    *,
    slice_samples: int,
) -> torch.Tensor:
    """Look up and send; return ``wrong``, which is not 0 if an index was out of range.

    ``tables``: their concatenated rows, and the first row of each. ``bags``: indices and offsets.
    ``place``: the first local table and the number of tables on all ranks. Slice k of this rank's
    samples is complete once each rank's flag has reached k + 1: see ``wait_for``.
    """
    weights, first_rows = tables
    indices, offsets = bags
    num_tables, dim = len(first_rows) - 1, weights.shape[1]
    samples = (len(offsets) - 1) // num_tables // peers.num_ranks
    programs = _programs(weights.device)
    slices = ceil(samples / slice_samples)
    wrong = torch.zeros(1, dtype=torch.int64, device=weights.device)
    kernels.embedding_all_to_all_kernel[(programs,)](
        weights,
        first_rows,
        indices,
        offsets,
        peers.outputs,
        peers.flags,
        _counters(peers.num_ranks * slices, weights.device),
        peers.leaving.data_ptr(),
        peers.outbox.queue,
        peers.outbox.tail,
        wrong,
        peers.rank,
        peers.num_ranks,
        num_tables,
        *place,
        samples,
        slice_samples,
        dim=dim,
        block=triton.next_power_of_2(dim),
        num_programs=programs,
    )
    return wrong


def gemv_all_reduce(
    matrix: torch.Tensor,
    vector: torch.Tensor,
    slots: torch.Tensor,
    peers: Peers,
    *,
    block_rows: int = 16,
    block_columns: int = 128,
    patience: int = 1 << 30,
) -> torch.Tensor:
    """Multiply, and leave the sum over ranks in every output; return 1 on a timeout, else 0.

    ``slots`` are the addresses of each rank's receive buffer for the summands of its part. In
    Triton's interpreter a rank has one program, because all waiting programs must run at once.
    """
    rows, columns = matrix.shape
    programs = _programs(matrix.device, interpreted=1)
    late = torch.zeros(1, dtype=torch.int32, device=matrix.device)
    kernels.gemv_all_reduce_kernel[(programs,)](
        matrix,
        vector,
        slots,
        peers.outputs,
        peers.flags,
        _counters(peers.num_ranks + 1, matrix.device),
        late,
        peers.rank,
        peers.num_ranks,
        rows // peers.num_ranks,
        columns,
        patience,
        block_rows=block_rows,
        block_columns=block_columns,
        num_programs=programs,
    )
    return late


def gemm_all_to_all(
    a: torch.Tensor, b: torch.Tensor, peers: Peers, *, tile: tuple[int, int, int] = (64, 64, 32)
) -> None:
    """Multiply, and send the rows of each rank to it, a band of ``tile[0]`` rows at a time."""
    inner, columns = b.shape
    rows = len(a) // peers.num_ranks
    programs = _programs(a.device)
    kernels.gemm_all_to_all_kernel[(programs,)](
        a,
        b,
        peers.outputs,
        peers.flags,
        _counters(peers.num_ranks * ceil(rows / tile[0]), a.device),
        peers.leaving.data_ptr(),
        peers.outbox.queue,
        peers.outbox.tail,
        peers.rank,
        peers.num_ranks,
        rows,
        columns,
        inner,
        block_m=tile[0],
        block_n=tile[1],
        block_k=tile[2],
        num_programs=programs,
    )


def wait_for(flags: torch.Tensor, counts: torch.Tensor, *, patience: int = 1 << 30) -> torch.Tensor:
    """Block the stream until every flag has its count; return 0, or 1 + a flag that timed out."""
    late = torch.zeros(1, dtype=torch.int32, device=flags.device)
    kernels.wait_kernel[(len(counts),)](flags, counts, late, patience)
    return late


def _counters(count: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)


def _programs(device: torch.device, interpreted: int = 2) -> int:
    """Return one program per compute unit, so that all are resident; a few if interpreted."""
    if device.type == "cpu":
        return interpreted
    return torch.cuda.get_device_properties(device).multi_processor_count
