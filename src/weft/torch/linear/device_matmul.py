"""Matmuls of GPUs fused with their collectives: weft's kernels, and those of torch.

    reduce    a few rows: weft's GEMV + all-reduce; more: a matmul, then the group's all-reduce
    combine   weft's GEMM + all-to-all, with a matrix per expert
    scatter   torch's fused_matmul_reduce_scatter
    gather    torch's fused_all_gather_matmul

Not yet run on hardware: tests run weft's kernels on CPU tensors in Triton's interpreter.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from weft.fused.tiles import Tiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from weft.fused.torch_symmetric_tensors import SymmetricMemory
    from weft.fused.triton_launch import GemmAllToAllOperator, GemvAllReduceOperator
    from weft.torch.backend.c10d import ProcessGroup

    Also = Callable[[slice, Tensor], None]

_FEW_ROWS = 16  # of a decoding step: more are a matrix product, which a library does faster
# torch 2.13 renamed them; earlier ones have the longer names.
_all_gather: Any = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


class Routing(Protocol):
    """Where the rows of a call go: counts by sender, receiver and expert."""

    counts: list[list[list[int]]]
    given: list[int]
    taken: list[int]

    def lines(self, sender: int, taker: int) -> int:
        """Return the number of rows that one rank computes for another."""


@dataclass
class DeviceExecution:
    """How calls are carried out on a GPU: always the same way, which ``reasons`` states."""

    reasons: dict[str, str] = field(default_factory=dict)

    def do(self, call: str, fused: Callable[[], None], unfused: Callable[[], None]) -> None:
        """Carry out a call for which there is no fused kernel on GPUs."""
        del fused
        self.reasons[call] = "unfused: a matmul and a collective of the group"
        unfused()


class DeviceMatmul:
    """The matmuls of the modules of a group whose tensors lie on GPUs."""

    def __init__(self, memory: SymmetricMemory, group: ProcessGroup | None) -> None:
        self.memory, self.group = memory, group
        self.rank, self.num_ranks = memory.rank, memory.num_ranks
        self.autotuner = DeviceExecution()
        self._gemv: dict[tuple[int, int], GemvAllReduceOperator] = {}
        self._gemm: dict[tuple[int, int, torch.dtype], GemmAllToAllOperator] = {}

    def tiles(self, extent: int, line: int) -> Tiles:
        """Return one tile: kernels have tiles of their own."""
        return Tiles(self.num_ranks, extent, line, 1)

    def reduce(self, x: Tensor, right: Tensor, name: str) -> Tensor:
        """Return the sum over ranks of ``x @ right``, on every rank."""
        tokens, features = x.shape[0], right.shape[1]
        call = f"{name}({tokens} x {x.shape[1]} x {features})"
        if tokens > _FEW_ROWS or not tokens:
            self.autotuner.reasons[call] = f"unfused: more than {_FEW_ROWS} rows"
            out = x @ right
            dist.all_reduce(out, group=self.group)
            return out
        from weft.fused.triton_configs import GEMV_CONFIGS, GemvConfig
        from weft.fused.triton_launch import GemvAllReduceOperator

        self.autotuner.reasons[call] = "fused: GEMV + all-reduce by stores into peers"
        key = (tokens, features)
        if key not in self._gemv:
            small = GemvConfig(block_rows=4, block_columns=64)
            config = GEMV_CONFIGS[0] if self.memory.device.type == "cuda" else small
            self._gemv[key] = GemvAllReduceOperator(self.memory, tokens, features, config=config)
        operator = self._gemv[key]
        operator.check()  # of the last call: this one need not wait for the device
        return operator.run(right.t().contiguous(), x.contiguous()).to(x.dtype, copy=True)

    def combine(self, routing: Routing, x: Tensor, weight: Tensor) -> Tensor:
        """Multiply the rows of every expert, and store them on the ranks they belong to."""
        from weft.fused.triton_configs import GEMM_CONFIGS, GemmConfig
        from weft.fused.triton_launch import GemmAllToAllOperator, RowSegment

        ranks, experts, columns = range(self.num_ranks), weight.shape[0], weight.shape[1]
        most = max(sum(routing.lines(one, other) for one in ranks) for other in ranks)
        key = (1 << max(most - 1, 0).bit_length(), columns, x.dtype)
        if key not in self._gemm:
            self._gemm[key] = GemmAllToAllOperator(self.memory, *key)
        operator = self._gemm[key]
        operator.check()
        small = GemmConfig(block_m=16, block_n=16, block_k=16)
        config = GEMM_CONFIGS[0] if self.memory.device.type == "cuda" else small
        segments, row = [], 0
        for target in ranks:
            place = sum(routing.lines(one, target) for one in range(self.rank))
            for expert in range(experts):
                count = routing.counts[self.rank][target][expert]
                segments.append(RowSegment(target, row, count, expert, place))
                row, place = row + count, place + count
        operator.launch(x, weight.transpose(1, 2), segments, config=config)
        found = operator.finish(
            [operator.slices_of(routing.counts[one][self.rank], config.block_m) for one in ranks]
        )
        call = f"ExpertCombine({key[0]} x {columns})"
        self.autotuner.reasons[call] = "fused: GEMM + all-to-all by stores into peers"
        return found[: sum(routing.taken)].clone()

    def scatter(self, x: Tensor, right: Tensor, name: str) -> Tensor:
        """Return this rank's rows of the sum over ranks of ``x @ right``."""
        call = f"{name}({x.shape[0]} x {x.shape[1]} x {right.shape[1]})"
        if x.is_cuda:
            self.autotuner.reasons[call] = "fused: torch's fused_matmul_reduce_scatter"
            fused = torch.ops.symm_mem.fused_matmul_reduce_scatter
            found: Tensor = fused(x, right, "sum", 0, self._name)
            return found
        self.autotuner.reasons[call] = "unfused: a matmul and a collective of the group"
        out = x.new_empty(x.shape[0] // self.num_ranks, right.shape[1])
        _reduce_scatter(out, x @ right, group=self.group)
        return out

    def gather(self, x: Tensor, right: Tensor, name: str, also: Also | None = None) -> Tensor:
        """Return all ranks' rows ``x`` times ``right``."""
        call = f"{name}({x.shape[0]} x {x.shape[1]} x {right.shape[1]})"
        if x.is_cuda:
            self.autotuner.reasons[call] = "fused: torch's fused_all_gather_matmul"
            fused = torch.ops.symm_mem.fused_all_gather_matmul
            whole, (out,) = fused(x, [right], 0, self._name)
        else:
            self.autotuner.reasons[call] = "unfused: a collective of the group and a matmul"
            whole = self._gathered(x)
            out = whole @ right
        if also is not None:
            also(slice(0, whole.shape[0]), whole)
        found: Tensor = out
        return found

    def gather_for(self, x: Tensor, use: Also, call: str) -> None:
        """Call ``use`` with all ranks' rows."""
        self.autotuner.reasons[call] = "unfused: a collective of the group and a matmul"
        whole = self._gathered(x)
        use(slice(0, whole.shape[0]), whole)

    def exchange(self, out: Tensor, x: Tensor, taken: Sequence[int], given: Sequence[int]) -> None:
        """Send each rank its rows of ``x``, and concatenate the received ones."""
        dist.all_to_all_single(out, x, list(taken), list(given), group=self.group)

    def all_counts(self, counts: Tensor) -> Tensor:
        """Return the counts of all ranks."""
        flat = counts.reshape(-1).to(self.memory.device)
        shown = flat.new_empty(self.num_ranks * flat.numel())
        _all_gather(shown, flat, group=self.group)
        return shown.view(self.num_ranks, *counts.shape)

    @property
    def _name(self) -> str:
        group = self.group if self.group is not None else dist.group.WORLD
        assert group is not None
        return str(group.group_name)

    def _gathered(self, x: Tensor) -> Tensor:
        whole = x.new_empty(x.shape[0] * self.num_ranks, x.shape[1])
        _all_gather(whole, x.contiguous(), group=self.group)
        return whole


def device_matmul(
    device: torch.device | str | None, memory: SymmetricMemory | None, group: ProcessGroup | None
) -> DeviceMatmul | None:
    """Return the matmuls of a GPU; None for CPU tensors, which weft's own runtime serves."""
    where = torch.device("cpu" if device is None else device)
    if memory is None and where.type != "cpu":
        from weft.fused.torch_symmetric_tensors import TorchSymmetricMemory

        memory = TorchSymmetricMemory(group, where)
    return None if memory is None else DeviceMatmul(memory, group)
