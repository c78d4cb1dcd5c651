"""The channel of a group that stands on several hosts."""

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
from weft.torch.backend.c10d_work import Handle
from weft.torch.backend.channel import Channel, Splits
from weft.torch.hosts import inter_host_encoded as between_encoded
from weft.torch.hosts import inter_host_movement as between_moves
from weft.torch.hosts import inter_host_reductions as between_reduces
from weft.torch.hosts.abort_propagation import Alarm
from weft.torch.hosts.gloo_transport import Wire
from weft.torch.hosts.host_map import Hosts
from weft.torch.hosts.host_topology import Place
from weft.torch.hosts.inter_host_encoded import Way
from weft.torch.hosts.intra_host import Inside
from weft.torch.hosts.p2p_transport import FarMessage, Letters, Probe
from weft.torch.hosts.serial_executor import Job, Jobs

_BY_LEADERS = "shared memory inside hosts, gloo between their leaders"
_STRAIGHT = "shared memory inside hosts, gloo from rank to rank between them"
_PATHS = {
    **dict.fromkeys(("all_reduce", "reduce_scatter", "reduce", "barrier"), _BY_LEADERS),
    **dict.fromkeys(("all_gather", "broadcast", "gather", "scatter"), _BY_LEADERS),
    **dict.fromkeys(("all_to_all", "send"), _STRAIGHT),
}


class SpreadChannel(Channel):
    """One rank's end: a world inside its host, a wire to the others.

    Calls run in their order, in a thread of their own if they are asynchronous. The wire
    moves bytes without the interpreter; the thread only looks after chunks.
    """

    def __init__(self, world: World, store: Store, hosts: Hosts, rank: int) -> None:
        super().__init__(world)
        self.hosts, self.rank = hosts, rank
        self.dispatch_cache = None  # it knows the calls of one world only
        self.progress_seconds = 0.0  # what waits for the wire leaves the core to others
        seconds = timedelta(seconds=world.timeout)
        self._wire = Wire(PrefixStore("wire", store), rank, hosts, seconds)
        self._alarm = Alarm(world, self._wire, hosts, rank, store)
        self._place = Place(Inside(world), self._wire, hosts, rank)
        self.pace = self._place.pace
        self._jobs = Jobs("weft-hosts")
        self._deltas = Deltas(rank)
        self._letters = Letters(self._wire, hosts, rank, self._alarm.raised)
        _open_channels.add(self)

    def drain(self) -> None:
        """Wait for the calls under way."""
        self._jobs.drain()

    def all_gather(self, out: Tensor, x: Tensor, *, async_op: bool) -> Job | None:
        """Join the ranks' inputs in their order."""
        return self._do(between_moves.all_gather, out, x, async_op=async_op)

    def all_reduce(self, x: Tensor, op: str, *, async_op: bool) -> Job | None:
        """Reduce in place, on every rank."""
        return self._do(between_reduces.all_reduce, x, op, async_op=async_op)

    def reduce(self, x: Tensor, root: int, op: str, *, async_op: bool) -> Job | None:
        """Reduce in place, on the root."""
        return self._do(between_reduces.reduce, x, root, op, async_op=async_op)

    def reduce_scatter(self, out: Tensor, x: Tensor, op: str, *, async_op: bool) -> Job | None:
        """Reduce, each rank its own part."""
        return self._do(between_reduces.reduce_scatter, out, x, op, async_op=async_op)

    def broadcast(
        self, x: Tensor, root: int, way: Way | None = None, *, async_op: bool
    ) -> Job | None:
        """Give every rank the root's tensor."""
        if way is None:
            return self._do(between_moves.broadcast, x, root, async_op=async_op)
        if is_delta(way.codec):
            act = partial(between_encoded.broadcast_change, self._deltas)
            return self._do(act, x, root, way, async_op=async_op)
        return self._do(between_encoded.broadcast, x, root, way, async_op=async_op)

    def all_to_all(
        self, out: Tensor, x: Tensor, splits: Splits | None, *, async_op: bool
    ) -> Job | None:
        """Give each rank its part of every input; splits count elements: taken, given."""
        even = [out.numel() // len(self.hosts.of)] * len(self.hosts.of)
        taken, given = splits or (even, even)
        outs = torch.split(out.view(-1), list(taken))
        xs = torch.split(x.view(-1), list(given))
        act = partial(between_moves.exchange, even=splits is None)
        return self._do(act, outs, xs, async_op=async_op)

    def exchange(
        self, outs: Sequence[Tensor], xs: Sequence[Tensor], *, async_op: bool
    ) -> Job | None:
        """Give a tensor to each rank and take one of each, of any sizes."""
        act = partial(between_moves.exchange, even=False)
        return self._do(act, outs, xs, async_op=async_op)

    def give_all(self, outs: Sequence[Tensor], x: Tensor, *, async_op: bool) -> Job | None:
        """Give every rank a tensor and take one of each: an all-gather into separate tensors."""
        return self._do(between_moves.give_all, outs, x, async_op=async_op)

    def gather(self, out: Tensor | None, x: Tensor, root: int, *, async_op: bool) -> Job | None:
        """Join the ranks' inputs on the root; others pass no output."""
        return self._do(between_moves.gather, out, x, root, async_op=async_op)

    def scatter(self, out: Tensor, x: Tensor | None, root: int, *, async_op: bool) -> Job | None:
        """Give each rank its part of the root's input."""
        return self._do(between_moves.scatter, out, x, root, async_op=async_op)

    def message(self, x: Tensor, peer: int, tag: int, *, sends: bool) -> Any:
        """Make a message to or from a rank; whoever looks at it carries it on."""
        self.require_healthy()
        if self._is_near(peer) and peer != self.rank:
            near = Channel(self.world)
            return near.message(x, self.hosts.place(peer), tag, sends=sends)
        return self._letters.message(x, peer, tag, sends=sends)

    def probe(self, x: Tensor, peer: int, tag: int) -> Any:
        """Make a receive that takes only what has been sent."""
        message = self.message(x, peer, tag, sends=False)
        return Probe(message) if isinstance(message, FarMessage) else message

    def require_healthy(self) -> None:
        """Raise if the group is broken."""
        self._alarm.require_healthy()
        self.world.require_healthy()

    def barrier(self, *, async_op: bool = False) -> Handle | None:
        """Meet all ranks; the ranks or the host that do not come in time are named."""
        return self.all_reduce(torch.zeros(1), "sum", async_op=async_op)

    def is_alive(self, peer: int) -> bool:
        """Whether a rank's process runs; the wire tells of those on other hosts."""
        return not self._is_near(peer) or super().is_alive(self.hosts.place(peer))

    def raise_died(self, peer: int, place: str) -> NoReturn:
        """End the group, on every host: a rank of this host died."""
        try:
            super().raise_died(self.hosts.place(peer), place)
        except RunError as error:
            raise self._alarm.raised(error) from error

    def raise_late(self, peer: int, place: str) -> NoReturn:
        """End the group, on every host: a rank, or any if it is -1, was waited for too long."""
        try:
            if self._is_near(peer):
                super().raise_late(self.hosts.place(peer), place)
            raise RunTimeoutError(
                f"rank {self.rank} timed out after {self.world.timeout:g} s at {place}"
                f"{f'; {self.hosts.describe(peer)} did not come' if peer >= 0 else ''}."
            )
        except RunError as error:
            raise self._alarm.raised(error) from error

    def missing(self, peer: int) -> str:
        """Say what an awaited rank does instead: not known between hosts."""
        del peer  # a world's text would have the numbers of its own ranks
        return ""

    def _is_near(self, peer: int) -> bool:
        return peer >= 0 and self.hosts.of[peer] == self.hosts.of[self.rank]

    def set_timeout(self, timeout: timedelta) -> None:
        """Let a rank wait this long for the others."""
        self._wire.set_timeout(timeout)
        super().set_timeout(timeout)

    def paths(self) -> dict[str, str]:
        """Say how bytes reach ranks of this host and of others, and what each collective does."""
        names = ", ".join(
            f"{name} ({len(ranks)} ranks)"
            for name, ranks in zip(self.hosts.names, self.hosts.ranks, strict=True)
        )
        return {**super().paths(), "between hosts": "gloo", "hosts": names, **_PATHS}

    def abort(self) -> None:
        """Break the group: whoever waits for this rank stops, on every host."""
        self._alarm.raised(RuntimeError(f"rank {self.rank} aborted the group"))

    def close(self) -> None:
        """Leave the group after what is under way."""
        _open_channels.discard(self)
        self._jobs.close()
        self._letters.close()
        self._wire.close()
        self.world.close()

    def end(self, error: BaseException | None) -> None:
        """Leave because the process ends, by an exception or well."""
        if error is not None:
            self._alarm.raised(error)
        self.close()

    def carry_out(self, act: Callable[..., None], *args: Any) -> None:
        """Let this rank speak with those of other hosts: ``act(place, *args)``, in turn."""
        self._do(act, *args, async_op=False)

    def _do(self, act: Callable[..., None], *args: Any, async_op: bool) -> Job | None:
        self.require_healthy()
        try:
            return self._jobs.do(partial(self._carry_out, act, args), async_op=async_op)
        except DisagreeError as error:  # of two threads at once, or what the others were told
            raise self._alarm.raised(error) from error

    def _carry_out(self, act: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            with torch.no_grad():
                self._alarm.require_healthy()
                act(self._place, *args)
        except (Exception, KeyboardInterrupt) as error:
            failure = self._alarm.raised(error)
            if isinstance(error, WeftError | RuntimeError):
                raise failure from error
            raise


_open_channels: "weakref.WeakSet[SpreadChannel]" = weakref.WeakSet()


@atexit.register
def _end_channels() -> None:
    """End threads while they still can: one that Gloo holds would abort the process."""
    for channel in list(_open_channels):
        channel.end(getattr(sys, "last_value", None))
