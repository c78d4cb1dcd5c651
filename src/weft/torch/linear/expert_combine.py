"""The last matmul of experts, fused with the all-to-all that returns rows to their ranks."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from weft.errors import UsageError
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.linear.device_matmul import DeviceMatmul, device_matmul
from weft.torch.linear.fused_matmul import FusedMatmul
from weft.torch.linear.fusion_autotune import Fuse
from weft.torch.linear.tiling import ScatterCallbacks

if TYPE_CHECKING:
    from weft.fused.torch_symmetric_tensors import SymmetricMemory

_LEAST = 16  # rows of a slot, at least


class ExpertCombine(nn.Module):
    """The last matmul of a rank's experts and the all-to-all that returns rows.

    Every rank holds the same number of ``num_experts``, in their order, each with a weight of
    (out_features, in_features). Inputs are the rows of all ranks for the experts held here, those
    of rank 0 first, of each rank those of the first expert first, and ``counts`` (ranks, experts
    held here). The output is this rank's rows, those returned by rank 0 first: the result of an
    all_to_all_single of the products.
    """

    def __init__(  # noqa: PLR0913 - keywords, as those of nn.Linear
        self,
        num_experts: int,
        in_features: int,
        out_features: int,
        *,
        dtype: torch.dtype | None = None,
        fuse: Fuse = "auto",
        slices: int | None = None,
        group: ProcessGroup | None = None,
        device: torch.device | str | None = None,
        memory: "SymmetricMemory | None" = None,
    ) -> None:
        super().__init__()
        on_device = device_matmul(device, memory, group)
        self._matmul = on_device or FusedMatmul(group, fuse, slices)
        parts, rank = self._matmul.num_ranks, self._matmul.rank
        if num_experts % parts:
            raise UsageError(
                f"num_experts: {num_experts} is not divisible by {parts} ranks.",
                f"Use a multiple of {parts}.",
            )
        whole = torch.empty(num_experts, out_features, in_features, dtype=dtype, device=device)
        with torch.no_grad():
            for expert in whole:
                nn.init.kaiming_uniform_(expert, a=5**0.5)  # as nn.Linear does
        self.weight = nn.Parameter(whole.chunk(parts)[rank].clone())

    @property
    def reasons(self) -> dict[str, str]:
        """Whether each shape runs fused or unfused, and why."""
        return self._matmul.autotuner.reasons

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Multiply the rows of every expert and return each to its rank."""
        experts, _, features = self.weight.shape
        if rows.dim() != 2 or rows.shape[1] != features or rows.dtype is not self.weight.dtype:
            raise UsageError(
                f"rows: expected (rows, {features}) of {self.weight.dtype} (got "
                f"{tuple(rows.shape)} of {rows.dtype}).",
            )
        wanted = (self._matmul.num_ranks, experts)
        if counts.shape != wanted or counts.dtype is not torch.int64:
            raise UsageError(
                f"counts: expected {wanted} of int64 (got {tuple(counts.shape)} of "
                f"{counts.dtype}).",
                "Pass the rows of each rank for each expert held here.",
            )
        if int(counts.sum()) != rows.shape[0] or bool((counts < 0).any()):
            raise UsageError(
                f"counts: expected a sum of {rows.shape[0]} rows (got {int(counts.sum())})."
            )
        routing = ExpertRouting(self._matmul, counts)
        y: Tensor = _Combine.apply(routing, rows.contiguous(), self.weight)  # type: ignore[no-untyped-call]
        return y

    def extra_repr(self) -> str:
        """Return what this rank holds."""
        ranks = f"rank {self._matmul.rank} of {self._matmul.num_ranks}"
        return f"{ranks} holds {self.weight.shape[0]} experts of {tuple(self.weight.shape[1:])}"


class ExpertRouting:
    """The destinations of all rows of a call, which all ranks know before any multiplies."""

    def __init__(self, matmul: FusedMatmul | DeviceMatmul, counts: Tensor) -> None:
        self.matmul = matmul
        self.counts = matmul.all_counts(counts.contiguous()).tolist()  # by sender, receiver, expert
        me, ranks = matmul.rank, range(matmul.num_ranks)
        self.given = [self.lines(me, rank) for rank in ranks]
        self.taken = [self.lines(rank, me) for rank in ranks]
        most = max(self.lines(one, other) for one in ranks for other in ranks)
        # Rounded up, so that a few slot sizes serve batches of any size.
        self.slot_lines = max(_LEAST, 1 << max(most - 1, 0).bit_length())

    def lines(self, sender: int, taker: int) -> int:
        """Return the number of rows that one rank computes for another."""
        return sum(self.counts[sender][taker])

    def segments(self, taker: int, cut: tuple[int, int]) -> Iterator[tuple[int, slice]]:
        """Yield the experts of some rows that are computed here for a rank, and their rows.

        Rows count from the start of ``cut``.
        """
        start, (first, last) = 0, cut
        for expert, count in enumerate(self.counts[self.matmul.rank][taker]):
            low, high = max(first, start), min(last, start + count)
            if low < high:
                yield expert, slice(low - first, high - first)
            start += count

    def call_name(self, name: str, width: int) -> str:
        """Return the name of the call, the same on every rank."""
        return f"{name}({self.slot_lines} x {width})"


def _forward(routing: ExpertRouting, x: Tensor, weight: Tensor) -> Tensor:
    """Compute rows for all ranks and receive this one's."""
    matmul, width = routing.matmul, weight.shape[1]
    if isinstance(matmul, DeviceMatmul):
        return matmul.combine(routing, x, weight)
    me, out = matmul.rank, x.new_empty(sum(routing.taken), width)
    call = routing.call_name("ExpertCombine", width)
    tiles = matmul.tiles(routing.slot_lines, width * x.element_size())

    def multiply(taker: int, cut: tuple[int, int], to: Tensor) -> None:
        rows = x[sum(routing.given[:taker]) :][slice(*cut)]
        for expert, part in routing.segments(taker, cut):
            torch.mm(rows[part], weight[expert].t(), out=to[part])

    def make(rank: int, number: int, buffer: Tensor) -> None:
        cut = tiles.clipped(number, routing.given[rank])
        multiply(rank, cut, buffer.view(x.dtype).view(-1, width))

    def keep(number: int) -> None:
        cut = tiles.clipped(number, routing.given[me])
        multiply(me, cut, out[sum(routing.taken[:me]) :][slice(*cut)])

    def take(number: int, parts: Mapping[int, Tensor]) -> None:
        for rank, part in parts.items():
            first, last = tiles.clipped(number, routing.taken[rank])
            rows = part.view(x.dtype).view(-1, width)[: last - first]
            out[sum(routing.taken[:rank]) :][first:last] = rows

    def unfused() -> None:
        made = x.new_empty(x.shape[0], width)
        for rank, count in enumerate(routing.given):
            multiply(rank, (0, count), made[sum(routing.given[:rank]) :])
        matmul.exchange(out, made, routing.taken, routing.given)

    callbacks = ScatterCallbacks(make, keep, take, routing.lines)
    matmul.autotuner.do(call, lambda: matmul.tiling.scatter(tiles, callbacks, call), unfused)
    return out


def _backward(  # noqa: C901 - one function per callback
    routing: ExpertRouting, grad: Tensor, x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Send gradients of rows to the ranks that computed them, which multiply them on arrival."""
    matmul, width = routing.matmul, weight.shape[1]
    me, of_x, of_weight = matmul.rank, torch.empty_like(x), torch.zeros_like(weight)
    call = routing.call_name("ExpertCombine.backward", width)
    tiles = matmul.tiles(routing.slot_lines, width * x.element_size())

    def used(rank: int, cut: tuple[int, int], rows: Tensor) -> None:
        """Use the gradients of rows that this rank computed for another one."""
        here = slice(sum(routing.given[:rank]) + cut[0], sum(routing.given[:rank]) + cut[1])
        for expert, part in routing.segments(rank, cut):
            torch.mm(rows[part], weight[expert], out=of_x[here][part])
            of_weight[expert].addmm_(rows[part].t(), x[here][part])

    def mine(rank: int, number: int) -> Tensor:
        return grad[sum(routing.taken[:rank]) :][slice(*tiles.clipped(number, routing.taken[rank]))]

    def make(rank: int, number: int, buffer: Tensor) -> None:
        rows = mine(rank, number)
        buffer.view(x.dtype).view(-1, width)[: rows.shape[0]] = rows

    def take(number: int, parts: Mapping[int, Tensor]) -> None:
        for rank, part in parts.items():
            cut = tiles.clipped(number, routing.given[rank])
            used(rank, cut, part.view(x.dtype).view(-1, width))

    def unfused() -> None:
        came = x.new_empty(x.shape[0], width)
        matmul.exchange(came, grad, routing.given, routing.taken)
        for rank, count in enumerate(routing.given):
            used(rank, (0, count), came[sum(routing.given[:rank]) :])

    def keep(number: int) -> None:
        used(me, tiles.clipped(number, routing.given[me]), mine(me, number))

    if isinstance(matmul, DeviceMatmul):
        unfused()
        return of_x, of_weight
    callbacks = ScatterCallbacks(
        make, keep, take, lambda sender, taker: routing.lines(taker, sender)
    )
    matmul.autotuner.do(call, lambda: matmul.tiling.scatter(tiles, callbacks, call), unfused)
    return of_x, of_weight


class _Combine(torch.autograd.Function):
    """Matmuls and all-to-all; backward: all-to-all and matmuls."""

    @staticmethod
    def forward(ctx: Any, routing: ExpertRouting, x: Tensor, weight: Tensor) -> Tensor:
        ctx.routing = routing
        ctx.save_for_backward(x, weight)
        return _forward(routing, x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *_backward(ctx.routing, grads[0].contiguous(), *ctx.saved_tensors)
