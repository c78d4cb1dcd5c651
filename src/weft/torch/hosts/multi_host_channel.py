"""The channel of a group on several hosts."""

import atexit
import sys
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor

from weft.compress import Deltas
from weft.compress.delta import is_delta
from weft.errors import DisagreeError, RunError, RunTimeoutError, WeftError
from weft.runtime import World
from weft.torch.backend.c10d import PrefixStore, Store
from weft.torch.backend.c10d_work import Waitable
from weft.torch.backend.channel import Channel, Splits
from weft.torch.hosts import inter_host_encoded, inter_host_movement, inter_host_reductions
from weft.torch.hosts.abort_propagation import AbortPropagator
from weft.torch.hosts.gloo_transport import GlooTransport
from weft.torch.hosts.host_map import HostMap
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.hosts.inter_host_encoded import BroadcastEncoding
from weft.torch.hosts.intra_host import IntraHost
from weft.torch.hosts.p2p_transport import AnnouncedReceive, InterHostMessage, P2PTransport
from weft.torch.hosts.serial_executor import SerialExecutor, SerialJob

_TO_LEAVE = 5.0  # seconds for a thread to leave its call when the process ends
_BY_LEADERS = "shared memory inside hosts, gloo between their leaders"
_STRAIGHT = "shared memory inside hosts, gloo from rank to rank between them"
_PATHS = {
    **dict.fromkeys(("all_reduce", "reduce_scatter", "reduce", "barrier"), _BY_LEADERS),
    **dict.fromkeys(("all_gather", "broadcast", "gather", "scatter"), _BY_LEADERS),
    **dict.fromkeys(("all_to_all", "send"), _STRAIGHT),
}


class MultiHostChannel(Channel):
    """One rank's end of a group: a world inside its host, Gloo to the other hosts.

    Calls run in order, asynchronous ones in a thread. Gloo transfers bytes without the GIL; the
    thread only issues chunks.
    """

    def __init__(self, world: World, store: Store, hosts: HostMap, rank: int) -> None:
        super().__init__(world)
        self.hosts, self.rank = hosts, rank
        self.dispatch_cache = None  # it serves the calls of one world only
        self.progress_seconds = 0.0  # a wait for the network leaves the core to others
        seconds = timedelta(seconds=world.timeout)
        self._transport = GlooTransport(PrefixStore("wire", store), rank, hosts, seconds)
        self._abort_propagator = AbortPropagator(world, self._transport, hosts, rank, store)
        self._topology = HostTopology(IntraHost(world), self._transport, hosts, rank)
        self.chunk_sizes = self._topology.chunk_sizes
        self._executor = SerialExecutor("weft-hosts")
        self._deltas = Deltas(rank)
        self._p2p = P2PTransport(self._transport, hosts, rank, self._abort_propagator.propagate)
        _open_channels.add(self)

    def drain(self) -> None:
        """Wait for the calls in flight."""
        self._executor.drain()

    def all_gather(self, out: Tensor, x: Tensor, *, async_op: bool) -> SerialJob | None:
        """Concatenate the ranks' inputs in their order."""
        return self._submit(inter_host_movement.all_gather, out, x, async_op=async_op)

    def all_reduce(self, x: Tensor, op: str, *, async_op: bool) -> SerialJob | None:
        """Reduce in place, on every rank."""
        return self._submit(inter_host_reductions.all_reduce, x, op, async_op=async_op)

    def reduce(self, x: Tensor, root: int, op: str, *, async_op: bool) -> SerialJob | None:
        """Reduce in place, on the root."""
        return self._submit(inter_host_reductions.reduce, x, root, op, async_op=async_op)

    def reduce_scatter(
        self, out: Tensor, x: Tensor, op: str, *, async_op: bool
    ) -> SerialJob | None:
        """Reduce-scatter into this rank's part."""
        return self._submit(inter_host_reductions.reduce_scatter, out, x, op, async_op=async_op)

    def broadcast(
        self, x: Tensor, root: int, encoding: BroadcastEncoding | None = None, *, async_op: bool
    ) -> SerialJob | None:
        """Broadcast the root's tensor."""
        if encoding is None:
            return self._submit(inter_host_movement.broadcast, x, root, async_op=async_op)
        if is_delta(encoding.codec):
            act = partial(inter_host_encoded.broadcast_delta, self._deltas)
            return self._submit(act, x, root, encoding, async_op=async_op)
        return self._submit(inter_host_encoded.broadcast, x, root, encoding, async_op=async_op)

    def all_to_all(
        self, out: Tensor, x: Tensor, splits: Splits | None, *, async_op: bool
    ) -> SerialJob | None:
        """Send each rank its part of every input; splits count elements: received, sent."""
        even = [out.numel() // len(self.hosts.of)] * len(self.hosts.of)
        taken, given = splits or (even, even)
        outs = torch.split(out.view(-1), list(taken))
        xs = torch.split(x.view(-1), list(given))
        act = partial(inter_host_movement.exchange, even=splits is None)
        return self._submit(act, outs, xs, async_op=async_op)

    def exchange(
        self, outs: Sequence[Tensor], xs: Sequence[Tensor], *, async_op: bool
    ) -> SerialJob | None:
        """Send a tensor to each rank and receive one from each, of any sizes."""
        act = partial(inter_host_movement.exchange, even=False)
        return self._submit(act, outs, xs, async_op=async_op)

    def all_gather_list(
        self, outs: Sequence[Tensor], x: Tensor, *, async_op: bool
    ) -> SerialJob | None:
        """All-gather into separate tensors, whose sizes may differ."""
        return self._submit(inter_host_movement.all_gather_list, outs, x, async_op=async_op)

    def gather(
        self, out: Tensor | None, x: Tensor, root: int, *, async_op: bool
    ) -> SerialJob | None:
        """Gather the ranks' inputs on the root; the others pass no output."""
        return self._submit(inter_host_movement.gather, out, x, root, async_op=async_op)

    def scatter(
        self, out: Tensor, x: Tensor | None, root: int, *, async_op: bool
    ) -> SerialJob | None:
        """Send each rank its part of the root's input."""
        return self._submit(inter_host_movement.scatter, out, x, root, async_op=async_op)

    def message(self, x: Tensor, peer: int, tag: int, *, sends: bool) -> Any:
        """Return a send or a receive, which makes progress when it is tested."""
        self.require_healthy()
        if self._is_near(peer) and peer != self.rank:
            near = Channel(self.world)
            return near.message(x, self.hosts.local_rank(peer), tag, sends=sends)
        return self._p2p.message(x, peer, tag, sends=sends)

    def probe(self, x: Tensor, peer: int, tag: int) -> Any:
        """Return a receive that matches only messages that have been sent."""
        message = self.message(x, peer, tag, sends=False)
        return AnnouncedReceive(message) if isinstance(message, InterHostMessage) else message

    def require_healthy(self) -> None:
        """Raise if the group has failed."""
        self._abort_propagator.require_healthy()
        self.world.require_healthy()

    def barrier(self, *, async_op: bool = False) -> Waitable | None:
        """Wait for all ranks; the error of a timeout names the missing ranks or host."""
        return self.all_reduce(torch.zeros(1), "sum", async_op=async_op)

    def is_alive(self, peer: int) -> bool:
        """Return whether a rank's process runs; the transport detects those on other hosts."""
        return not self._is_near(peer) or super().is_alive(self.hosts.local_rank(peer))

    def raise_died(self, peer: int, doing: str) -> NoReturn:
        """Fail the group on every host: a rank of this host died."""
        try:
            super().raise_died(self.hosts.local_rank(peer), doing)
        except RunError as error:
            raise self._abort_propagator.propagate(error) from error

    def raise_late(self, peer: int, doing: str) -> NoReturn:
        """Fail the group on every host: waiting for a rank, or any if it is -1, timed out."""
        try:
            if self._is_near(peer):
                super().raise_late(self.hosts.local_rank(peer), doing)
            raise RunTimeoutError(
                f"rank {self.rank}: timeout after {self.world.timeout:g} s at {doing}"
                f"{f'; {self.hosts.describe(peer)} did not come' if peer >= 0 else ''}."
            )
        except RunError as error:
            raise self._abort_propagator.propagate(error) from error

    def missing(self, peer: int) -> str:
        """Return nothing: what a rank does is not known between hosts."""
        del peer  # a world's text has local ranks
        return ""

    def _is_near(self, peer: int) -> bool:
        return peer >= 0 and self.hosts.of[peer] == self.hosts.of[self.rank]

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a rank waits for the others."""
        self._transport.set_timeout(timeout)
        super().set_timeout(timeout)

    def paths(self) -> dict[str, str]:
        """Return how bytes reach ranks of this host and of others, by collective."""
        names = ", ".join(
            f"{name} ({len(ranks)} ranks)"
            for name, ranks in zip(self.hosts.names, self.hosts.ranks, strict=True)
        )
        return {**super().paths(), "between hosts": "gloo", "hosts": names, **_PATHS}

    def interrupt(self, error: BaseException) -> None:
        """Make calls in flight end, because this rank leaves after an error: Gloo would wait."""
        if self._executor.is_busy():
            self._abort_propagator.propagate(error)

    def abort(self) -> None:
        """Fail the group on every host: ranks that wait for this one stop."""
        self._abort_propagator.propagate(RuntimeError(f"rank {self.rank} aborted the group"))

    def close(self) -> None:
        """Leave the group after the calls in flight."""
        _open_channels.discard(self)
        self._executor.close()
        self._p2p.close()
        self._transport.close()
        self.world.close()

    def end(self, error: BaseException | None) -> None:
        """Leave because the process ends, with or without an exception.

        A thread of the user that is inside Gloo when the interpreter ends would abort the process:
        it gets an error first, as do the ranks that it communicates with.
        """
        if error is None and self._executor.has_other_caller():
            error = RunError(f"rank {self.rank} exited while a thread of it was in a collective")
        if error is not None:
            self._abort_propagator.propagate(error)
            self._executor.wait_for_caller(_TO_LEAVE)
        self.close()

    def run_between_hosts(self, act: Callable[..., None], *args: Any) -> None:
        """Run ``act(topology, *args)`` in the order of calls."""
        self._submit(act, *args, async_op=False)

    def _submit(self, act: Callable[..., None], *args: Any, async_op: bool) -> SerialJob | None:
        self.require_healthy()
        try:
            return self._executor.run(partial(self._run, act, args), async_op=async_op)
        except DisagreeError as error:  # two threads at once, or a failure of another rank
            raise self._abort_propagator.propagate(error) from error

    def _run(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            with torch.no_grad():
                self._abort_propagator.require_healthy()
                act(self._topology, *args)
        except (Exception, KeyboardInterrupt) as error:
            failure = self._abort_propagator.propagate(error)
            if isinstance(error, WeftError | RuntimeError):
                raise failure from error
            raise


_open_channels: "weakref.WeakSet[MultiHostChannel]" = weakref.WeakSet()


@atexit.register
def _end_channels() -> None:
    """End threads before the interpreter does: one inside Gloo would abort the process."""
    for channel in list(_open_channels):
        channel.end(getattr(sys, "last_value", None))
