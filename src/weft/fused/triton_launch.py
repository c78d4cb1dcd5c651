"""Launches fused kernels: on CPU tensors in Triton's interpreter, on a GPU in peer memory.

An operator owns what persists between executions: outputs and flags that every rank has, counters,
and the number of the execution (epoch) in device memory, which each launch increments on its
stream.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from weft.errors import RunTimeoutError, UsageError
from weft.fused import triton_kernels as kernels
from weft.fused.torch_symmetric_tensors import SymmetricMemory
from weft.fused.triton_configs import (
    GEMM_CONFIGS,
    GEMV_CONFIGS,
    EmbeddingConfig,
    GemmConfig,
    GemvConfig,
    embedding_configs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_POLLS = 1 << 24  # polls of a flag: some 10 s at about a microsecond each
ELEMENTS = {
    torch.float32: tl.float32,
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
}


class FusedOperator:
    """What the fused operators share: flags, counters, epochs, and how they wait."""

    def __init__(
        self, memory: SymmetricMemory, num_flags: int, num_counters: int, *, epoch: int
    ) -> None:
        self.memory, self.device = memory, memory.device
        self.num_ranks, self.rank = memory.num_ranks, memory.rank
        self.flags = memory.allocate((max(num_flags, 1),), torch.int32)
        self.flags.mine.fill_(epoch)
        self.epoch = torch.full((1,), epoch, dtype=torch.int32, device=self.device)
        self.counters = torch.zeros(max(num_counters, 1), dtype=torch.int32, device=self.device)
        self.trouble = torch.zeros(2, dtype=torch.int64, device=self.device)
        self.hip = self.device.type == "cuda" and torch.version.hip is not None
        self.peers = triton.next_power_of_2(self.num_ranks)

    def begin(self) -> None:
        """Prepare the next launch on the current stream: flags of earlier ones are behind."""
        self.epoch += 1  # wraps at the end of int32, as flags and their comparison do

    def wait(self, first: int, count: int, max_polls: int = MAX_POLLS) -> None:
        """Block the stream until some of this rank's flags are raised in this epoch."""
        if count:
            kernels.wait_kernel[(1,)](
                self.flags.mine[first:],
                self.epoch,
                self.trouble,
                count,
                max_polls,
                block=triton.next_power_of_2(count),
            )

    def finish_slice(
        self, number: int, senders: Sequence[int], *, max_polls: int = MAX_POLLS
    ) -> None:
        """Block the stream until slice ``number`` of every sender has arrived."""
        first = number * self.num_ranks
        if len(senders) == self.num_ranks:
            self.wait(first, self.num_ranks, max_polls)
        else:
            for sender in senders:
                self.wait(first + sender, 1, max_polls)

    def check(self) -> None:
        """Raise what the kernels reported. Waits for them."""
        position, late = self.trouble.tolist()
        if late:
            raise RunTimeoutError(
                f"{type(self).__name__}: rank {self.rank} waited too long for other ranks.",
                "All ranks must make the same calls; create the operator anew after a failure.",
            )
        if position:
            self.trouble.zero_()
            raise IndexError(f"index {position - 1} of a table is out of range")


@dataclass(frozen=True, slots=True)
class TableRows:
    """One table of this rank with its bags: rows x dim, and where its columns stand in a row."""

    rows: torch.Tensor
    indices: torch.Tensor  # int64
    offsets: torch.Tensor  # int64, of all samples, and the end
    column: int
    factors: torch.Tensor | None = None  # of the indices


class EmbeddingAllToAllOperator(FusedOperator):
    """Pooled rows of this rank's tables for all samples, stored where the samples belong.

    ``samples`` is the number of samples of each rank, ``width`` the columns of all tables, and
    ``slice_samples`` how many are published together. The output is valid until the next launch.
    """

    def __init__(
        self,
        memory: SymmetricMemory,
        samples: Sequence[int],
        width: int,
        *,
        slice_samples: int = 512,
        epoch: int = 0,
    ) -> None:
        self.samples, self.width, self.slice_samples = list(samples), width, slice_samples
        self.most = max(self.samples)
        self.num_slices = max(1, ceil(self.most / self.slice_samples))
        ranks = memory.num_ranks
        super().__init__(
            memory,
            (self.num_slices + 1) * ranks,
            self.num_slices * ranks,
            epoch=epoch,
        )
        self.outputs = memory.allocate((self.most, width), torch.float32)
        starts = torch.tensor([0, *self.samples]).cumsum(0)
        self._starts = starts.to(self.device)
        self._none = torch.zeros(1, 16, dtype=torch.float32, device=self.device)

    @property
    def output(self) -> torch.Tensor:
        """The rows of this rank's samples."""
        return self.outputs.mine[: self.samples[self.rank]]

    def launch(
        self,
        tables: Sequence[TableRows],
        *,
        mean: bool = False,
        config: EmbeddingConfig | None = None,
        max_polls: int = MAX_POLLS,
    ) -> None:
        """Look up and send; the output is complete after ``finish``."""
        self.begin()
        dims = [table.rows.shape[1] for table in tables]
        config = config or embedding_configs(max(dims, default=1))[0]
        if self.slice_samples % config.bags:
            raise UsageError(f"bags: {config.bags} does not divide {self.slice_samples}.")
        block = triton.next_power_of_2(max(dims, default=1))
        kernels.embedding_all_to_all_kernel[(config.programs(self.device),)](
            self._descriptors(tables),
            self._starts,
            self.outputs.addresses,
            self.flags.addresses,
            self.flags.mine,
            self.counters,
            self.epoch,
            self.trouble,
            self.rank,
            self.num_ranks,
            len(tables),
            self.most,
            self.width,
            self.slice_samples,
            max_polls,
            bags=config.bags,
            unroll=config.unroll,
            block=block,
            vector=_vector(*dims, *(table.column for table in tables), self.width),
            peers=self.peers,
            element=ELEMENTS[tables[0].rows.dtype] if tables else tl.float32,
            exact=all(dim == block for dim in dims),
            mean=mean,
            weighted=any(table.factors is not None for table in tables),
            num_programs=config.programs(self.device),
            hip=self.hip,
            **config.options(),
        )

    def _descriptors(self, tables: Sequence[TableRows]) -> torch.Tensor:
        rows = []
        for table in tables:
            count, dim = table.rows.shape
            held = table.rows if count else self._none  # row 0 is read, and dropped
            factors = 0 if table.factors is None else table.factors.data_ptr()
            addresses = held.data_ptr(), table.indices.data_ptr(), table.offsets.data_ptr()
            rows.append([*addresses, factors, count, dim, table.column])
        found = torch.tensor(rows or [[0] * kernels.TABLE_FIELDS], dtype=torch.int64)
        return found.to(self.device, non_blocking=True)


class GemvAllReduceOperator(FusedOperator):
    """Products of a few vectors with a matrix, summed over all ranks: ``tokens`` x ``features``."""

    def __init__(
        self,
        memory: SymmetricMemory,
        tokens: int,
        features: int,
        *,
        config: GemvConfig = GEMV_CONFIGS[0],
        epoch: int = 0,
    ) -> None:
        self.tokens, self.features, self.config = tokens, features, config
        self.part_rows = ceil(tokens * features / memory.num_ranks)
        self.blocks = ceil(self.part_rows / config.block_rows)
        super().__init__(memory, 2 * self.blocks * memory.num_ranks, 0, epoch=epoch)
        self.slots = memory.allocate((memory.num_ranks, self.part_rows), torch.float32)
        self.results = memory.allocate((tokens, features), torch.float32)

    def run(
        self, matrix: torch.Tensor, vectors: torch.Tensor, *, max_polls: int = MAX_POLLS
    ) -> torch.Tensor:
        """Return the sums in float32, valid until the next call.

        In Triton's interpreter a rank has one program, because all waiting programs must run at
        once.
        """
        self.begin()
        config = self.config
        programs = config.programs(self.device, interpreted=1)
        kernels.gemv_all_reduce_kernel[(programs,)](
            matrix,
            vectors,
            self.slots.addresses,
            self.results.addresses,
            self.flags.addresses,
            self.slots.mine,
            self.flags.mine,
            self.epoch,
            self.trouble,
            self.rank,
            self.num_ranks,
            self.tokens * self.features,
            self.features,
            self.part_rows,
            matrix.shape[1],
            max_polls,
            block_rows=config.block_rows,
            block_columns=config.block_columns,
            peers=self.peers,
            num_programs=programs,
            hip=self.hip,
            **config.options(),
        )
        self.wait(self.blocks * self.num_ranks, self.blocks * self.num_ranks, max_polls)
        return self.results.mine


@dataclass(frozen=True, slots=True)
class RowSegment:
    """Rows of the left factor with one target and one matrix, and their place at the target."""

    target: int
    row: int
    rows: int
    matrix: int
    place: int


class GemmAllToAllOperator(FusedOperator):
    """Products whose rows belong to several ranks, stored there tile by tile.

    ``rows`` is the most rows that a rank receives, ``slices`` the flags of each pair of ranks.
    """

    def __init__(
        self,
        memory: SymmetricMemory,
        rows: int,
        columns: int,
        dtype: torch.dtype,
        *,
        slices: int = 4,
        epoch: int = 0,
    ) -> None:
        self.columns, self.num_slices, self.dtype = columns, slices, dtype
        ranks = memory.num_ranks
        super().__init__(memory, (slices + 1) * ranks, slices * ranks, epoch=epoch)
        self.outputs = memory.allocate((rows, columns), dtype)

    def launch(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        segments: Sequence[RowSegment],
        *,
        config: GemmConfig = GEMM_CONFIGS[0],
        max_polls: int = MAX_POLLS,
    ) -> None:
        """Multiply rows of ``a`` by matrices of ``b`` (matrices x inner x columns), and send them.

        How many slices arrive at a target follows from its segments (``slices_of``).
        """
        self.begin()
        tiles = torch.tensor(
            list(self._bands(segments, config.block_m)) or [[0] * kernels.TILE_FIELDS],
            dtype=torch.int64,
        ).to(self.device, non_blocking=True)
        num_tiles = sum(ceil(each.rows / config.block_m) for each in segments)
        programs = config.programs(self.device)
        kernels.gemm_all_to_all_kernel[(programs,)](
            a,
            b,
            tiles,
            self.outputs.addresses,
            self.flags.addresses,
            self.flags.mine,
            self.counters,
            self.epoch,
            self.trouble,
            self.rank,
            self.num_ranks,
            num_tiles,
            self.columns,
            a.shape[1],
            *b.stride(),
            self.num_slices,
            max_polls,
            block_m=config.block_m,
            block_n=config.block_n,
            block_k=config.block_k,
            vector=_vector(self.columns),
            peers=self.peers,
            element=ELEMENTS[self.dtype],
            num_programs=programs,
            hip=self.hip,
            **config.options(),
        )

    def slices_of(self, segments: Sequence[int], block_m: int) -> int:
        """Return the number of slices in which segments of these rows arrive from one rank."""
        return min(self.num_slices, sum(ceil(rows / block_m) for rows in segments))

    def finish(self, slices: Sequence[int], *, max_polls: int = MAX_POLLS) -> torch.Tensor:
        """Block the stream until so many slices of every rank have arrived; return the rows."""
        for part in range(self.num_slices):
            senders = [rank for rank, count in enumerate(slices) if part < count]
            self.finish_slice(part, senders, max_polls=max_polls)
        return self.outputs.mine

    def _bands(self, segments: Sequence[RowSegment], block_m: int) -> Iterator[list[int]]:
        """Yield bands of all targets in turn, own ones last, with the slice each belongs to."""
        bands: dict[int, list[RowSegment]] = {rank: [] for rank in range(self.num_ranks)}
        for each in segments:
            for start in range(0, each.rows, block_m):
                rows = min(block_m, each.rows - start)
                bands[each.target].append(
                    replace(each, row=each.row + start, rows=rows, place=each.place + start)
                )
        order = [(self.rank + step) % self.num_ranks for step in range(1, self.num_ranks + 1)]
        for targets in (order[:-1], order[-1:]):
            longest = max((len(bands[target]) for target in targets), default=0)
            for number in range(longest):
                for target in targets:
                    if number < len(bands[target]):
                        yield self._band(bands[target], number)

    def _band(self, bands: list[RowSegment], number: int) -> list[int]:
        slices = min(self.num_slices, len(bands))
        part = number * slices // len(bands)
        members = sum(other * slices // len(bands) == part for other in range(len(bands)))
        band = bands[number]
        return [band.target, band.row, band.rows, band.matrix, band.place, part, members, 0]


def _vector(*sizes: int) -> int:
    """Return the largest of 8, 4, 2 and 1 that divides all sizes: elements of one access."""
    return next(count for count in (8, 4, 2, 1) if all(size % count == 0 for size in sizes))
