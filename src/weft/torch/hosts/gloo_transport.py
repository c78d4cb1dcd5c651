"""Messages between hosts: weft has no transport of its own, it uses that of torch.distributed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import RankDiedError, RunError, RunTimeoutError
from weft.torch.backend.c10d import Store
from weft.torch.hosts.chunks import as_bytes
from weft.torch.hosts.host_map import HostMap

_BREAK = (1 << 20) + 7  # a tag that nobody sends
# A host's other ranks wait for its leader, which so gives up first and can tell them why.
_SOONER = 0.95


class Transfer:
    """One message under way: ``wait`` for it before its memory is touched."""

    __slots__ = ("_tensor", "_text", "_transport", "_work", "peer")

    def __init__(
        self, transport: "GlooTransport", work: Any, tensor: Tensor, peer: int, text: str
    ) -> None:
        self._transport, self._work, self._tensor = transport, work, tensor
        self.peer = peer
        self._text = text

    def wait(self) -> None:
        """Return when it has come or gone; the interpreter is free meanwhile."""
        work, self._work = self._work, None
        if work is None:  # Gloo would wait for the next one
            return
        try:
            work.wait(self._transport.timeout)
        except RuntimeError as error:
            raise self._transport.failure(error, self.peer, self._text) from error

    def wait_without_timeout(self) -> None:
        """Return when it has come, however late."""
        self._work.wait(timedelta(days=3650))


class GlooTransport:
    """One rank's connections to the ranks of a group, made by Gloo.

    Two ranks exchange the messages of one tag in their order. Memory belongs to the wire
    until the transfer has been waited for.
    """

    def __init__(self, store: Store, rank: int, hosts: HostMap, timeout: timedelta) -> None:
        self._rank, self._hosts = rank, hosts
        self.set_timeout(timeout)
        size, others = len(hosts.of), _threads()
        try:
            self._group: Any = dist.ProcessGroupGloo(store, rank, size, timeout)
        except RuntimeError as error:
            raise RunError(
                f"rank {rank} cannot connect to the other hosts: {_first_line(error)}.",
                "Set GLOO_SOCKET_IFNAME to the network interface that reaches them.",
            ) from error
        self._threads = [
            thread
            for thread in _threads() - others
            if os.sched_getscheduler(thread) == os.SCHED_OTHER
        ]

    @contextmanager
    def background_scheduling(self) -> Iterator[None]:
        """Let a caller who computes meanwhile keep its core until its turn is over.

        Gloo's thread does not sleep while a caller has hold of a connection, it asks again and
        again. Woken by what comes in the middle of a send, it would take the core from that very
        caller: on one core a third of what sending costs. A thread of batches is as often on the
        core, but takes it from nobody.
        """
        self._schedule(os.SCHED_BATCH)
        try:
            yield
        finally:
            self._schedule(os.SCHED_OTHER)

    def _schedule(self, policy: int) -> None:
        for thread in self._threads:
            with suppress(OSError):  # a sandbox may forbid it: then it is only slower
                os.sched_setscheduler(thread, policy, os.sched_param(0))

    def set_timeout(self, timeout: timedelta) -> None:
        """Let a message take this long."""
        self.timeout = timeout * _SOONER

    def send(self, x: Tensor, to: int, tag: int) -> Transfer:
        """Send a contiguous tensor's bytes, at least one."""
        return self._begun(self._group.send, as_bytes(x), to, tag, "to send to")

    def recv(self, x: Tensor, source: int, tag: int) -> Transfer:
        """Fill a contiguous tensor of at least one byte."""
        return self._begun(self._group.recv, as_bytes(x), source, tag, "for")

    def _begun(self, begin: Any, raw: Tensor, peer: int, tag: int, doing: str) -> Transfer:
        """Begin a message; one over a connection that was closed fails here already."""
        try:
            work = begin([raw], peer, tag)
        except RuntimeError as error:
            raise self.failure(error, peer, doing) from error
        return Transfer(self, work, raw, peer, doing)

    def failure(self, error: RuntimeError, peer: int, doing: str) -> RunError:
        """Say which rank did not do its part, and how."""
        other = self._hosts.describe(peer)
        if "Timed out" in str(error):
            seconds = self.timeout.total_seconds()
            return RunTimeoutError(
                f"rank {self._rank} timed out after {seconds:g} s waiting {doing} {other}",
                "If the others are only slow, give a longer timeout.",
            )
        return RankDiedError(
            f"{other} died or left the group while rank {self._rank} waited {doing} it",
            f"Look into the output of rank {peer} for the reason.",
        )

    def close(self) -> None:
        """Give the connections up: nothing is under way any more."""
        self._group = None

    def close_all(self) -> None:
        """Close every connection, so that whoever waits at one is told, here and there.

        Gloo has no call for it, but a wait that is too long closes them all.
        """
        for other in range(len(self._hosts.of)):
            if other == self._rank or self._group is None:
                continue
            try:
                self._group.recv([torch.empty(1)], other, _BREAK).wait(timedelta(milliseconds=1))
            except RuntimeError as error:
                if "Timed out" in str(error):
                    return
                # That rank has closed its own end: it takes one who has not.


def _threads() -> set[int]:
    return {int(each.name) for each in Path("/proc/self/task").iterdir()}


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0].rstrip(".")
