"""Collectives on contiguous CPU tensors, carried out by the World of one host."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor

from weft._core import AbortCause, DispatchCache, FaultReason
from weft.collectives.catalogue import BUILDERS
from weft.runtime import RawMemory, World
from weft.runtime.p2p_messages import Message
from weft.runtime.prepared_cache import can_reduce
from weft.torch.backend.c10d_work import Waitable

if TYPE_CHECKING:
    from weft.torch.hosts.inter_host_encoded import BroadcastEncoding

DTYPE_NAMES = {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in vars(torch).values()
    if isinstance(dtype, torch.dtype)
}

# Longer than the usual skew of ranks in a training step, far below any timeout.
PROGRESS_SECONDS = 20e-3

Splits = tuple[Sequence[int], Sequence[int]]


def memory_of(tensor: Tensor) -> RawMemory:
    """Return the memory of a contiguous tensor, which the caller keeps alive."""
    return RawMemory(tensor.data_ptr(), tensor.nbytes, DTYPE_NAMES[tensor.dtype])


class Channel:
    """One rank's end of a group. A call waits, or returns a Work when it is asynchronous.

    Operations are weft's names: sum, avg, min, max, prod, premul:FACTOR, band, bor, bxor.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rank = world.rank
        self.algorithm: str | None = None  # of the next call, set by a plan
        self.dispatch_cache: DispatchCache | None = world.dispatch_cache  # serves repeated calls
        # Without a core for the worker, leaving a call to it gains nothing.
        self.progress_seconds = 0.0 if world.has_core_for_worker else PROGRESS_SECONDS

    def _algorithm(self, kind: str, op: str) -> str | None:
        """Return the planned algorithm if it can carry out this reduction.

        A plan knows neither the operator of a call nor that uneven parts are reduced one by one.
        """
        planned = self.algorithm
        if planned is None or planned not in BUILDERS[kind] or not can_reduce(planned, op):
            return None
        return planned

    def all_gather(self, out: Tensor, x: Tensor, *, async_op: bool) -> Waitable | None:
        """Concatenate the ranks' inputs in their order."""
        return self.world.all_gather(
            memory_of(out), memory_of(x), algorithm=self.algorithm, async_op=async_op
        )

    def all_reduce(self, x: Tensor, op: str, *, async_op: bool) -> Waitable | None:
        """Reduce in place, on every rank."""
        return self.world.all_reduce(
            memory_of(x), op, algorithm=self._algorithm("all_reduce", op), async_op=async_op
        )

    def reduce(self, x: Tensor, root: int, op: str, *, async_op: bool) -> Waitable | None:
        """Reduce in place, on the root."""
        return self.world.reduce(
            memory_of(x), root, op, algorithm=self._algorithm("reduce", op), async_op=async_op
        )

    def reduce_scatter(self, out: Tensor, x: Tensor, op: str, *, async_op: bool) -> Waitable | None:
        """Reduce-scatter into this rank's part."""
        return self.world.reduce_scatter(
            memory_of(out),
            memory_of(x),
            op,
            algorithm=self._algorithm("reduce_scatter", op),
            async_op=async_op,
        )

    def broadcast(
        self, x: Tensor, root: int, encoding: "BroadcastEncoding | None" = None, *, async_op: bool
    ) -> Waitable | None:
        """Broadcast the root's tensor; ``encoding`` applies between hosts."""
        del encoding  # there is only one host
        return self.world.broadcast(memory_of(x), root, algorithm=self.algorithm, async_op=async_op)

    def all_to_all(
        self,
        out: Tensor,
        x: Tensor,
        splits: Splits | None,
        *,
        async_op: bool,
    ) -> Waitable | None:
        """Send each rank its part of every input; splits count elements: received, sent."""
        if splits is None:
            return self.world.all_to_all(
                memory_of(out), memory_of(x), algorithm=self.algorithm, async_op=async_op
            )
        size = x.element_size()
        taken, given = ([count * size for count in side] for side in splits)
        return self.world.all_to_all(memory_of(out), memory_of(x), taken, given, async_op=async_op)

    def exchange(
        self, outs: Sequence[Tensor], xs: Sequence[Tensor], *, async_op: bool
    ) -> Waitable | None:
        """Send a tensor to each rank and receive one from each, of any sizes."""
        buffers, parts = [memory_of(out) for out in outs], [memory_of(x) for x in xs]
        return self.world.exchange(buffers, parts, async_op=async_op)

    def all_gather_list(
        self, outs: Sequence[Tensor], x: Tensor, *, async_op: bool
    ) -> Waitable | None:
        """All-gather into separate tensors, whose sizes may differ."""
        buffers = [memory_of(out) for out in outs]
        return self.world.exchange(buffers, [memory_of(x)] * len(buffers), async_op=async_op)

    def message(self, x: Tensor, peer: int, tag: int, *, sends: bool) -> Any:
        """Return a send or a receive, which makes progress when it is tested."""
        return Message(self.world, memory_of(x), peer, tag, sends=sends)

    def gather(
        self, out: Tensor | None, x: Tensor, root: int, *, async_op: bool
    ) -> Waitable | None:
        """Gather the ranks' inputs on the root; the others pass no output."""
        buffer = None if out is None else memory_of(out)
        return self.world.gather(buffer, memory_of(x), root, async_op=async_op)

    def scatter(
        self, out: Tensor, x: Tensor | None, root: int, *, async_op: bool
    ) -> Waitable | None:
        """Send each rank its part of the root's input."""
        whole = None if x is None else memory_of(x)
        return self.world.scatter(memory_of(out), whole, root, async_op=async_op)

    def probe(self, x: Tensor, peer: int, tag: int) -> Any:
        """Return a receive that matches only messages that have been sent."""
        return self.message(x, peer, tag, sends=False)

    def require_healthy(self) -> None:
        """Raise if the group has failed."""
        self.world.require_healthy()

    def barrier(self, *, async_op: bool = False) -> Waitable | None:
        """Wait for all ranks; the error of a timeout names the missing ones."""
        return self.world.barrier(async_op=async_op)

    def is_alive(self, peer: int) -> bool:
        """Return whether a rank's process runs, as far as this host can see."""
        return _is_alive(self.world.member.pid(peer))

    def raise_died(self, peer: int, doing: str) -> NoReturn:
        """Fail the group on all ranks: an awaited rank died."""
        self.world.raise_abort((AbortCause.DIED, peer, -1, 0, 0), lambda _: doing)

    def raise_late(self, peer: int, doing: str) -> NoReturn:
        """Fail the group on all ranks: waiting for a rank, or any if it is -1, timed out."""
        self.world.raise_abort((AbortCause.TIMEOUT, peer, -1, 0, 0), lambda _: doing)

    def missing(self, peer: int) -> str:
        """Return what an awaited rank does instead, if it is known here."""
        return self.world.member.missing(peer)

    def drain(self) -> None:
        """Wait for the calls in flight."""
        self.world.drain()

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a rank waits for the others."""
        self.world.set_timeout(timeout.total_seconds())

    def paths(self) -> dict[str, str]:
        """Return how bytes reach the other ranks."""
        return self.world.paths

    def close(self) -> None:
        """Leave the world."""
        self.world.close()

    def interrupt(self, error: BaseException) -> None:
        """Make calls in flight end, because this rank leaves after an error; ``close`` does it."""

    def abort(self) -> None:
        """Fail the world: waiting ranks stop."""
        rank = self.world.rank
        self.world.fail(FaultReason.RAISED, rank, f"rank {rank} aborted the group")


def _is_alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
