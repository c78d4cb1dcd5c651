"""Transfers between hosts, by the Gloo process group of torch.distributed."""

import ctypes
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
from weft.torch.backend.bounded_store import StoreUnreachableError, answered
from weft.torch.backend.c10d import Store
from weft.torch.hosts.chunks import as_bytes
from weft.torch.hosts.host_map import HostMap

_BREAK = (1 << 20) + 7  # a tag that is never sent
# Leaders time out earlier than the other ranks of their host, so that they can report why.
_SOONER = 0.95
_TO_CONNECT = 1.0  # seconds after its timeout in which Gloo reports it


class Transfer:
    """A transfer in flight: ``wait`` for it before its memory is reused."""

    __slots__ = ("_tensor", "_text", "_transport", "_work", "peer")

    def __init__(
        self, transport: "GlooTransport", work: Any, tensor: Tensor, peer: int, text: str
    ) -> None:
        self._transport, self._work, self._tensor = transport, work, tensor
        self.peer = peer
        self._text = text

    def wait(self) -> None:
        """Wait until it is complete, with the GIL released."""
        work, self._work = self._work, None
        if work is None:  # it is complete: Gloo would wait for the next one
            return
        try:
            work.wait(self._transport.timeout)
        except RuntimeError as error:
            raise self._transport.failure(error, self.peer, self._text) from error

    def wait_without_timeout(self) -> None:
        """Wait without a timeout."""
        self._work.wait(timedelta(days=3650))


class GlooTransport:
    """One rank's connections to the ranks of a group, made by Gloo.

    Messages of one tag between two ranks keep their order. Memory must not be reused before the
    transfer was waited for.
    """

    def __init__(self, store: Store, rank: int, hosts: HostMap, timeout: timedelta) -> None:
        self._rank, self._hosts = rank, hosts
        self.set_timeout(timeout)
        size, others = len(hosts.of), _threads()
        try:
            # Gloo's own timeout does not hold while it asks the store for addresses.
            self._group: Any = answered(
                lambda: dist.ProcessGroupGloo(store, rank, size, timeout),
                timeout.total_seconds() + _TO_CONNECT,
            )
        except StoreUnreachableError:
            raise
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[0].rstrip(".")
            raise RunError(
                f"rank {rank} cannot connect to the other hosts: {reason}.",
                "Set GLOO_SOCKET_IFNAME to the network interface that reaches them.",
            ) from error
        self._threads = [thread for thread in _threads() - others if _is_ordinary(thread)]

    @contextmanager
    def background_scheduling(self) -> Iterator[None]:
        """Schedule Gloo's threads as batch threads while the caller computes.

        Gloo's thread polls while a caller holds a connection. If incoming data wakes it in the
        middle of a send, it preempts that caller: on one core a third of the time of sending. A
        SCHED_BATCH thread gets as much time, but does not preempt others.
        """
        self._schedule(os.SCHED_BATCH)
        try:
            yield
        finally:
            self._schedule(os.SCHED_OTHER)

    def _schedule(self, policy: int) -> None:
        for thread in self._threads:
            with suppress(OSError):  # forbidden in some sandboxes: then it is only slower
                os.sched_setscheduler(thread, policy, os.sched_param(0))

    def set_timeout(self, timeout: timedelta) -> None:
        """Set the timeout of a transfer."""
        self.timeout = timeout * _SOONER

    def send(self, x: Tensor, to: int, tag: int) -> Transfer:
        """Send a contiguous tensor's bytes, at least one."""
        return self._begun(self._group.send, as_bytes(x), to, tag, "to send to")

    def recv(self, x: Tensor, source: int, tag: int) -> Transfer:
        """Fill a contiguous tensor of at least one byte."""
        return self._begun(self._group.recv, as_bytes(x), source, tag, "for")

    def _begun(self, begin: Any, raw: Tensor, peer: int, tag: int, doing: str) -> Transfer:
        """Start a transfer; raise if the connection is closed."""
        try:
            work = begin([raw], peer, tag)
        except RuntimeError as error:
            raise self.failure(error, peer, doing) from error
        return Transfer(self, work, raw, peer, doing)

    def failure(self, error: RuntimeError, peer: int, doing: str) -> RunError:
        """Return the error of a failed transfer."""
        other = self._hosts.describe(peer)
        if "Timed out" in str(error):
            seconds = self.timeout.total_seconds()
            return RunTimeoutError(
                f"rank {self._rank} timed out after {seconds:g} s waiting {doing} {other}",
                "If the other ranks are only slow, pass a longer timeout.",
            )
        return RankDiedError(
            f"{other} died or left the group while rank {self._rank} waited {doing} it",
            f"Check the output of rank {peer} for the reason.",
        )

    def close(self) -> None:
        """Drop the connections; no transfer is in flight any more."""
        self._group = None

    def keep_forever(self) -> None:
        """Never destroy the connections: a thread is inside Gloo and will not come back."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._group))

    def close_all(self) -> None:
        """Close every connection, so that all waits on both sides fail.

        Gloo has no call for it, but a timed out wait closes them all.
        """
        for other in range(len(self._hosts.of)):
            if other == self._rank or self._group is None:
                continue
            try:
                self._group.recv([torch.empty(1)], other, _BREAK).wait(timedelta(milliseconds=1))
            except RuntimeError as error:
                if "Timed out" in str(error):
                    return
                # That rank has closed its end already: try the next one.


def _is_ordinary(thread: int) -> bool:
    """Return whether a thread runs, with the scheduling of ordinary ones."""
    try:
        return os.sched_getscheduler(thread) == os.SCHED_OTHER
    except OSError:  # it has ended meanwhile
        return False


def _threads() -> set[int]:
    return {int(each.name) for each in Path("/proc/self/task").iterdir()}
