"""Matmuls over the ranks of a group, fused with their collectives or not."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from weft.fused.tiles import Tiles
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.backend.group_functions import weft_group
from weft.torch.hosts.chunks import as_bytes
from weft.torch.hosts.intra_host import reduce_local
from weft.torch.hosts.multi_host_channel import MultiHostChannel
from weft.torch.linear.fusion_autotune import Fuse, FusionAutotuner
from weft.torch.linear.tiling import InterHostTiling, IntraHostTiling, ScatterCallbacks, Tiling

INTRA_HOST_SLICES = 4
TILE_BYTES = 512 << 10  # between hosts: shorter messages take more CPU time
MOST_SLICES = 32
LEAST_LINES = 128  # of a tile between hosts: a matmul of fewer rows is slower

Also = Callable[[slice, Tensor], None]  # called with rows of the gathered input


class FusedMatmul:
    """The matmuls of the modules of a group, and their memory."""

    def __init__(self, group: ProcessGroup | None, fuse: Fuse, slices: int | None) -> None:
        self._channel = channel = weft_group(group).channel
        self.rank, self.num_ranks = channel.rank, weft_group(group).size()
        self._is_multi_host = isinstance(channel, MultiHostChannel)
        self.tiling: Tiling = (
            InterHostTiling(channel)
            if isinstance(channel, MultiHostChannel)
            else IntraHostTiling(channel.world)
        )
        self._slices = slices
        self.autotuner = FusionAutotuner(channel, fuse)

    def tiles(self, extent: int, line: int) -> Tiles:
        """Return the tiles of so many lines: few in shared memory, more between hosts."""
        most = min(MOST_SLICES, max(extent // LEAST_LINES, 1))
        wished = min(max(extent * line // TILE_BYTES, INTRA_HOST_SLICES), most)
        slices = self._slices or (wished if self._is_multi_host else INTRA_HOST_SLICES)
        return Tiles(self.num_ranks, extent, line, max(1, min(slices, extent)))

    def scatter(self, x: Tensor, right: Tensor, name: str) -> Tensor:
        """Return this rank's rows of the sum over ranks of ``x @ right``."""
        call = _call_name(name, x, right)
        out = x.new_empty(x.shape[0] // self.num_ranks, right.shape[1])
        self.autotuner.do(
            call,
            lambda: self._scatter_fused(out, x, right, call),
            lambda: self._scatter_unfused(out, x, right),
        )
        return out

    def gather(self, x: Tensor, right: Tensor, name: str, also: Also | None = None) -> Tensor:
        """Return all ranks' rows ``x`` times ``right``."""
        call = _call_name(name, x, right)
        out = x.new_empty(x.shape[0] * self.num_ranks, right.shape[1])

        def use(rows: slice, tile: Tensor) -> None:
            torch.mm(tile, right, out=out[rows])
            if also is not None:
                also(rows, tile)

        self.gather_for(x, use, call)
        return out

    def gather_for(self, x: Tensor, use: Also, call: str) -> None:
        """Call ``use`` with all ranks' rows, at once or as they arrive."""
        self.autotuner.do(
            call, lambda: self._gather_fused(x, use, call), lambda: self._gather_unfused(x, use)
        )

    def reduce(self, x: Tensor, right: Tensor, name: str) -> Tensor:
        """Return the sum over ranks of ``x @ right``, on every rank."""
        call = _call_name(name, x, right)
        out = x.new_empty(x.shape[0], right.shape[1])
        self.autotuner.do(
            call,
            lambda: self._reduce_fused(out, x, right, call),
            lambda: self._reduce_unfused(out, x, right),
        )
        return out

    def exchange(self, out: Tensor, x: Tensor, taken: list[int], given: list[int]) -> None:
        """Send each rank its rows of ``x``, and concatenate the received ones."""
        splits = [[rows * x.shape[1] for rows in side] for side in (taken, given)]
        self._channel.all_to_all(out, x, (splits[0], splits[1]), async_op=False)

    def all_counts(self, counts: Tensor) -> Tensor:
        """Return the counts of all ranks."""
        shown = counts.new_empty(self.num_ranks, *counts.shape)
        self._channel.all_gather(shown, counts, async_op=False)
        return shown

    def _scatter_fused(self, out: Tensor, x: Tensor, right: Tensor, call: str) -> None:
        part, width = out.shape
        tiles = self.tiles(part, width * x.element_size())

        def make(rank: int, number: int, buffer: Tensor) -> None:
            rows = _rows(rank * part, tiles.cut[number])
            torch.mm(x[rows], right, out=_typed(buffer, out))

        def keep(number: int) -> None:
            first, last = tiles.cut[number]
            rows = _rows(self.rank * part, (first, last))
            torch.mm(x[rows], right, out=out[first:last])

        def take(number: int, parts: Mapping[int, Tensor]) -> None:
            rows = out[slice(*tiles.cut[number])]
            whole = {self.rank: rows, **{rank: _typed(part, out) for rank, part in parts.items()}}
            reduce_local(rows, [whole[rank] for rank in sorted(whole)], "sum")

        self.tiling.scatter(tiles, ScatterCallbacks(make, keep, take), call)

    def _scatter_unfused(self, out: Tensor, x: Tensor, right: Tensor) -> None:
        self._channel.reduce_scatter(out, torch.mm(x, right), "sum", async_op=False)

    def _gather_fused(self, x: Tensor, use: Also, call: str) -> None:
        part, depth = x.shape
        tiles = self.tiles(part, depth * x.element_size())

        def keep(number: int) -> None:
            first, last = tiles.cut[number]
            use(_rows(self.rank * part, (first, last)), x[first:last])

        def used(rank: int, number: int, buffer: Tensor) -> None:
            use(_rows(rank * part, tiles.cut[number]), _typed(buffer, x))

        self.tiling.gather(tiles, as_bytes(x), (keep, used), call)

    def _gather_unfused(self, x: Tensor, use: Also) -> None:
        whole = x.new_empty(x.shape[0] * self.num_ranks, x.shape[1])
        self._channel.all_gather(whole, x, async_op=False)
        use(slice(0, whole.shape[0]), whole)

    def _reduce_fused(self, out: Tensor, x: Tensor, right: Tensor, call: str) -> None:
        rows, width = out.shape
        tiles = self.tiles(width, rows * x.element_size())

        def make(number: int, buffer: Tensor) -> None:
            columns = right[:, slice(*tiles.cut[number])]
            torch.mm(x, columns, out=buffer.view(x.dtype).view(rows, -1))

        def take(number: int, parts: Mapping[int, Tensor]) -> None:
            first, last = tiles.cut[number]
            tile = x.new_empty(rows, last - first)
            reduce_local(tile, [parts[rank].view(x.dtype) for rank in sorted(parts)], "sum")
            out[:, first:last] = tile

        self.tiling.reduce(tiles, (make, take), call)

    def _reduce_unfused(self, out: Tensor, x: Tensor, right: Tensor) -> None:
        torch.mm(x, right, out=out)
        self._channel.all_reduce(out, "sum", async_op=False)


def _rows(start: int, cut: tuple[int, int]) -> slice:
    return slice(start + cut[0], start + cut[1])


def _typed(buffer: Tensor, like: Tensor) -> Tensor:
    """Return bytes as rows of a matrix like another."""
    return buffer.view(like.dtype).view(-1, like.shape[1])


def _call_name(name: str, x: Tensor, right: Tensor) -> str:
    sizes = " x ".join(map(str, (*x.shape, right.shape[1])))
    return f"{name}({sizes}, {str(x.dtype).removeprefix('torch.')})"
