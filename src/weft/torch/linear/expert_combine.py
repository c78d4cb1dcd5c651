"""Experts' last product, whose rows go to the ranks they are for while the next ones are made."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from weft.errors import UsageError
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.linear.fused_matmul import FusedMatmul
from weft.torch.linear.fusion_autotune import Fuse
from weft.torch.linear.tiling import ScatterCallbacks

_LEAST = 16  # rows of a slot


class ExpertCombine(nn.Module):
    """The last product of a rank's experts, and the all-to-all that brings rows back.

    Of ``num_experts`` every rank holds as many, in their order, each with a weight of
    (out_features, in_features). It takes the rows of all ranks for the experts held here, first
    those of rank 0, of each rank those of the first expert first, and ``counts`` (ranks, experts
    held here). It gives this rank's rows, first those that came back from rank 0: what an
    all_to_all_single of the products gives.
    """

    def __init__(
        self,
        num_experts: int,
        in_features: int,
        out_features: int,
        *,
        dtype: torch.dtype | None = None,
        fuse: Fuse = "auto",
        slices: int | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self._matmul = FusedMatmul(group, fuse, slices)
        parts, rank = self._matmul.num_ranks, self._matmul.rank
        if num_experts % parts:
            raise UsageError(
                f"{num_experts} experts cannot be shared by {parts} ranks.",
                f"Use a multiple of {parts}.",
            )
        whole = torch.empty(num_experts, out_features, in_features, dtype=dtype)
        with torch.no_grad():
            for expert in whole:
                nn.init.kaiming_uniform_(expert, a=5**0.5)  # as nn.Linear does
        self.weight = nn.Parameter(whole.chunk(parts)[rank].clone())

    @property
    def reasons(self) -> dict[str, str]:
        """What is done for each shape that came, fused or not, and why."""
        return self._matmul.autotuner.reasons

    def forward(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Multiply the rows of every expert and bring each to its rank."""
        experts, _, features = self.weight.shape
        if rows.dim() != 2 or rows.shape[1] != features or rows.dtype is not self.weight.dtype:
            raise UsageError(
                f"ExpertCombine: the input is {rows.dtype} of shape {tuple(rows.shape)}.",
                f"It needs rows of {features} features, {self.weight.dtype}.",
            )
        wanted = (self._matmul.num_ranks, experts)
        if counts.shape != wanted or counts.dtype is not torch.int64:
            raise UsageError(
                f"ExpertCombine: counts are {counts.dtype} of shape {tuple(counts.shape)}.",
                f"They need int64 of shape {wanted}: rows of each rank for each expert here.",
            )
        if int(counts.sum()) != rows.shape[0] or bool((counts < 0).any()):
            raise UsageError(
                f"ExpertCombine: counts of {int(counts.sum())} rows where there are "
                f"{rows.shape[0]}."
            )
        routing = ExpertRouting(self._matmul, counts)
        y: Tensor = _Combine.apply(routing, rows.contiguous(), self.weight)  # type: ignore[no-untyped-call]
        return y

    def extra_repr(self) -> str:
        """Say what this rank holds."""
        ranks = f"rank {self._matmul.rank} of {self._matmul.num_ranks}"
        return f"{ranks} holds {self.weight.shape[0]} experts of {tuple(self.weight.shape[1:])}"


class ExpertRouting:
    """Which rows go where in one call: known to all ranks before any of them multiplies."""

    def __init__(self, matmul: FusedMatmul, counts: Tensor) -> None:
        self.matmul = matmul
        self.counts = matmul.all_counts(counts.contiguous()).tolist()  # by sender, taker, expert
        me, ranks = matmul.rank, range(matmul.num_ranks)
        self.given = [self.lines(me, rank) for rank in ranks]
        self.taken = [self.lines(rank, me) for rank in ranks]
        most = max(self.lines(one, other) for one in ranks for other in ranks)
        # Rounded up, so that few sizes of slots serve batches that are never alike.
        self.room = max(_LEAST, 1 << max(most - 1, 0).bit_length())

    def lines(self, sender: int, taker: int) -> int:
        """Count the rows that one rank makes for another."""
        return sum(self.counts[sender][taker])

    def segments(self, taker: int, cut: tuple[int, int]) -> Iterator[tuple[int, slice]]:
        """Give the experts of some of the rows made here for a rank, and which rows are whose.

        Rows count from the first of the cut.
        """
        start, (first, last) = 0, cut
        for expert, count in enumerate(self.counts[self.matmul.rank][taker]):
            low, high = max(first, start), min(last, start + count)
            if low < high:
                yield expert, slice(low - first, high - first)
            start += count

    def call_name(self, name: str, width: int) -> str:
        """Name the call; the same on every rank."""
        return f"{name}({self.room} x {width})"


def _forward(routing: ExpertRouting, x: Tensor, weight: Tensor) -> Tensor:
    """Make products for all ranks and take this one's."""
    matmul, width = routing.matmul, weight.shape[1]
    me, out = matmul.rank, x.new_empty(sum(routing.taken), width)
    call = routing.call_name("ExpertCombine", width)
    tiles = matmul.tiles(routing.room, width * x.element_size())

    def multiply(taker: int, cut: tuple[int, int], to: Tensor) -> None:
        rows = x[sum(routing.given[:taker]) :][slice(*cut)]
        for expert, part in routing.segments(taker, cut):
            torch.mm(rows[part], weight[expert].t(), out=to[part])

    def make(rank: int, number: int, room: Tensor) -> None:
        cut = tiles.clipped(number, routing.given[rank])
        multiply(rank, cut, room.view(x.dtype).view(-1, width))

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


def _backward(
    routing: ExpertRouting, grad: Tensor, x: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Send gradients of rows to whoever made them, and multiply them there as they come."""
    matmul, width = routing.matmul, weight.shape[1]
    me, of_x, of_weight = matmul.rank, torch.empty_like(x), torch.zeros_like(weight)
    call = routing.call_name("ExpertCombine.backward", width)
    tiles = matmul.tiles(routing.room, width * x.element_size())

    def used(rank: int, cut: tuple[int, int], rows: Tensor) -> None:
        """Take the gradients of some rows that this rank made for another."""
        here = slice(sum(routing.given[:rank]) + cut[0], sum(routing.given[:rank]) + cut[1])
        for expert, part in routing.segments(rank, cut):
            torch.mm(rows[part], weight[expert], out=of_x[here][part])
            of_weight[expert].addmm_(rows[part].t(), x[here][part])

    def mine(rank: int, number: int) -> Tensor:
        return grad[sum(routing.taken[:rank]) :][slice(*tiles.clipped(number, routing.taken[rank]))]

    def make(rank: int, number: int, room: Tensor) -> None:
        rows = mine(rank, number)
        room.view(x.dtype).view(-1, width)[: rows.shape[0]] = rows

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

    callbacks = ScatterCallbacks(
        make, keep, take, lambda sender, taker: routing.lines(taker, sender)
    )
    matmul.autotuner.do(call, lambda: matmul.tiling.scatter(tiles, callbacks, call), unfused)
    return of_x, of_weight


class _Combine(torch.autograd.Function):
    """Products and all-to-all; back: all-to-all and products."""

    @staticmethod
    def forward(ctx: Any, routing: ExpertRouting, x: Tensor, weight: Tensor) -> Tensor:
        ctx.routing = routing
        ctx.save_for_backward(x, weight)
        return _forward(routing, x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return None, *_backward(ctx.routing, grads[0].contiguous(), *ctx.saved_tensors)
