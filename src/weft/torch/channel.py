"""Collectives of a world on contiguous CPU tensors."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor

from weft.runtime import World
from weft.runtime.world import Reason
from weft.torch.reductions import Reduction
from weft.torch.work import Handle

_ROOM = 4 << 20  # bytes a rank shows the others at a time

_JOIN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": torch.add,
    "avg": torch.add,
    "premul": torch.add,
    "min": torch.minimum,
    "max": torch.maximum,
    "prod": torch.mul,
    "band": torch.bitwise_and,
    "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor,
}


class _Job:
    def __init__(self, future: "Future[None]") -> None:
        self._future = future

    def wait(self, timeout: float | None = None) -> bool:
        try:
            self._future.result(timeout)
        except FutureTimeoutError:
            if not self._future.done():
                return False
            raise
        return True

    def is_done(self) -> bool:
        return self._future.done()


class Channel:
    """One rank's end. A call returns when it is done, or a handle when it is asynchronous."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rank, self.num_ranks = world.rank, world.num_ranks
        start = world.blocks.take(_ROOM)
        world.member.reserve(world.region(self.rank) + start, _ROOM)
        world.barrier()
        self._slots = [
            torch.from_numpy(world.member.view(world.region(rank) + start, _ROOM))
            for rank in range(self.num_ranks)
        ]
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def all_gather(self, out: Tensor, x: Tensor, *, async_op: bool) -> Handle | None:
        """Join the ranks' inputs in their order."""
        job = partial(self._all_gather, out, x)
        return self._do(f"all_gather({_text(x)})", job, async_op=async_op)

    def all_reduce(self, x: Tensor, op: Reduction, *, async_op: bool) -> Handle | None:
        """Reduce in place, on every rank."""
        job = partial(self._reduce, x, x, op, everyone=True)
        return self._do(f"all_reduce({_text(x)}, {op.name})", job, async_op=async_op)

    def reduce(self, x: Tensor, root: int, op: Reduction, *, async_op: bool) -> Handle | None:
        """Reduce in place, on the root."""
        job = partial(self._reduce, x, x, op, everyone=self.rank == root)
        return self._do(f"reduce({_text(x)}, {op.name}, {root})", job, async_op=async_op)

    def reduce_scatter(
        self, out: Tensor, x: Tensor, op: Reduction, *, async_op: bool
    ) -> Handle | None:
        """Reduce, each rank its own part."""
        job = partial(self._reduce_scatter, out, x, op)
        return self._do(f"reduce_scatter({_text(x)}, {op.name})", job, async_op=async_op)

    def broadcast(self, x: Tensor, root: int, *, async_op: bool) -> Handle | None:
        """Give every rank the root's tensor."""
        job = partial(self._broadcast, x, root)
        return self._do(f"broadcast({_text(x)}, {root})", job, async_op=async_op)

    def all_to_all(
        self,
        out: Tensor,
        x: Tensor,
        out_splits: Sequence[int],
        in_splits: Sequence[int],
        *,
        async_op: bool,
    ) -> Handle | None:
        """Give each rank its part of every input; splits count elements."""
        job = partial(self._all_to_all, out, x, out_splits, in_splits)
        return self._do(f"all_to_all({x.dtype})", job, async_op=async_op)

    def gather(self, out: Tensor | None, x: Tensor, root: int, *, async_op: bool) -> Handle | None:
        """Join the ranks' inputs on the root; others pass no output."""
        job = partial(
            self._all_gather, x.new_empty(x.numel() * self.num_ranks) if out is None else out, x
        )
        return self._do(f"gather({_text(x)}, {root})", job, async_op=async_op)

    def scatter(self, out: Tensor, x: Tensor | None, root: int, *, async_op: bool) -> Handle | None:
        """Give each rank its part of the root's input."""
        job = partial(self._scatter, out, x, root)
        return self._do(f"scatter({_text(out)}, {root})", job, async_op=async_op)

    def barrier(self, *, async_op: bool) -> Handle | None:
        """Wait for every rank."""
        return self._do("barrier", lambda: None, async_op=async_op)

    def close(self) -> None:
        """Leave the world."""
        self._thread.shutdown()
        self.world.close()

    def abort(self) -> None:
        """Break the world: whoever waits stops."""
        self.world.fail(Reason.RAISED, self.rank, f"rank {self.rank} aborted the group")

    def _do(self, call: str, job: Callable[[], None], *, async_op: bool) -> Handle | None:
        def work() -> None:
            self.world.agree(call)
            job()

        if async_op:
            self._last = self._thread.submit(work)
            return _Job(self._last)
        if self._last is not None and not self._last.done():
            self._thread.submit(work).result()
        else:
            work()
        return None

    def _all_gather(self, out: Tensor, x: Tensor) -> None:
        parts = out.view(-1).view(torch.uint8).chunk(self.num_ranks) if x.numel() else []
        for begin, end in _pieces(x.numel() * x.element_size()):
            self._show(x, begin, end)
            for rank, part in enumerate(parts):
                part[begin:end] = self._slots[rank][: end - begin]
            self.world.barrier()

    def _broadcast(self, x: Tensor, root: int) -> None:
        flat = _bytes(x)
        for begin, end in _pieces(len(flat)):
            if self.rank == root:
                self._slots[root][: end - begin] = flat[begin:end]
            self.world.barrier()
            if self.rank != root:
                flat[begin:end] = self._slots[root][: end - begin]
            self.world.barrier()

    def _reduce(self, out: Tensor, x: Tensor, op: Reduction, *, everyone: bool) -> None:
        result = _bytes(out)
        for begin, end in _pieces(x.numel() * x.element_size()):
            self._show(x, begin, end)
            parts = [slot[: end - begin].view(x.dtype) for slot in self._slots]
            joined = _join(parts, op) if everyone else None
            self.world.barrier()
            if joined is not None:
                result[begin:end] = _bytes(joined)

    def _reduce_scatter(self, out: Tensor, x: Tensor, op: Reduction) -> None:
        parts = x.view(-1).chunk(self.num_ranks) if x.numel() else []
        for rank, part in enumerate(parts):
            self._reduce(out if rank == self.rank else part, part, op, everyone=rank == self.rank)

    def _all_to_all(
        self, out: Tensor, x: Tensor, out_splits: Sequence[int], in_splits: Sequence[int]
    ) -> None:
        size, results = x.element_size(), _bytes(out)
        shown = self.world.agree("splits", ",".join(map(str, in_splits)).encode())
        starts = [0, *accumulate(out_splits)]
        table = [[int(s) for s in text.split(b",")] for text in shown]
        for src, splits in enumerate(table):
            if splits[self.rank] != out_splits[src]:
                raise RuntimeError("splits disagree")
            total = sum(splits)
            whole = x if src == self.rank else x.new_empty(total)
            whole = whole.reshape(-1).clone()
            self._broadcast(whole, src)
            at = sum(splits[: self.rank]) * size
            nbytes = splits[self.rank] * size
            results[starts[src] * size : starts[src] * size + nbytes] = _bytes(whole)[
                at : at + nbytes
            ]

    def _scatter(self, out: Tensor, x: Tensor | None, root: int) -> None:
        whole = x.clone() if x is not None else out.new_empty(out.numel() * self.num_ranks)
        self._broadcast(whole, root)
        if out.numel():
            out.view(-1).copy_(whole.view(-1).chunk(self.num_ranks)[self.rank])

    def _show(self, x: Tensor, begin: int, end: int) -> None:
        self._slots[self.rank][: end - begin] = _bytes(x)[begin:end]
        self.world.barrier()


def _pieces(nbytes: int) -> list[tuple[int, int]]:
    return [(begin, min(begin + _ROOM, nbytes)) for begin in range(0, nbytes, _ROOM)]


def _bytes(x: Tensor) -> Tensor:
    return x.reshape(-1).view(torch.uint8)


def _join(parts: list[Tensor], op: Reduction) -> Tensor:
    if op.name == "premul":
        parts = [part * op.factor for part in parts]
    wide = parts[0].dtype.is_floating_point and parts[0].element_size() < 4
    result = parts[0].float() if wide else parts[0].clone()
    for part in parts[1:]:
        result = _JOIN[op.name](result, part.float() if wide else part)
    if op.name == "avg":
        result = result / len(parts) if result.is_floating_point() else result // len(parts)
    return result.to(parts[0].dtype)


def _text(x: Tensor) -> str:
    return f"{x.dtype}, {x.numel()}"
