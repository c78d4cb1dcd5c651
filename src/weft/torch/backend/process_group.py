"""The process group that torch.distributed gives for the backend ``weft``."""

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from weft.errors import RunError, UsageError
from weft.torch.backend.batch_isend_irecv import install_batch_isend_irecv as install_batches
from weft.torch.backend.c10d import BackendOptions, PrefixStore, Store
from weft.torch.backend.c10d_work import FutureCompleter
from weft.torch.backend.device_groups import GroupInfo, backend_in, make_device_group
from weft.torch.backend.fast_path import FastPathCollectives
from weft.torch.backend.p2p_queue import P2PQueue
from weft.torch.backend.send_recv import SendRecv
from weft.torch.backend.store_rendezvous import rendezvous

__all__ = ["WeftProcessGroup", "register"]


class WeftProcessGroup(FastPathCollectives, SendRecv):
    """One rank's view of a group: a world in shared memory for CPU tensors.

    A group replaces what torch would make of several backends, so tensors of other devices
    are handed to a process group of theirs, which is made when the first of them comes and gets
    the ``pg_options`` of this one.

    Threads: one at a time makes the collective calls of a group; others may send, receive and wait
    meanwhile, or use groups of their own.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        timeout: timedelta,
        *,
        options: Any = None,
        in_world: Sequence[int] = (),
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg] # its stub misses this form
        self.store = store
        self.timeout = timeout
        self._rank, self._size = rank, size
        self._options, self._in_world = options, tuple(in_world)
        self._name = self._desc = ""
        self._device_groups: dict[str, Any] = {}
        self._in_flight = []
        self._keeping = threading.RLock()
        self.channel = rendezvous(store, rank, size, timeout)
        self.completer = FutureCompleter(self.channel.progress_seconds)
        self.dispatch_cache = self.channel.dispatch_cache
        self.p2p_queue = P2PQueue(self.channel)

    def size(self) -> int:
        """Count the ranks."""
        return self._size

    def rank(self) -> int:
        """Say which of them this is."""
        return self._rank

    def getBackendName(self) -> str:  # noqa: N802 - torch names it
        """Give the name to init_process_group."""
        return "weft"

    def name(self) -> str:
        """Give the same."""
        return "weft"

    getRank, getSize = rank, size  # noqa: N815 - torch names them

    def getGroupName(self) -> str:  # noqa: N802
        """Give the group's name."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Take the name that torch gives the group."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Give the group's description."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        """Take the description of the group."""
        self._desc = desc

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc

    @property
    def group_name(self) -> str:  # type: ignore[override] # torch has a type for it
        """The group's name."""
        return self._name

    @property
    def group_desc(self) -> str:
        """The group's description."""
        return self._desc

    @property
    def _device_types(self) -> list[torch.device]:
        """Where tensors may lie; object collectives take the first."""
        return [torch.device("cpu")]

    def _get_backend(self, device: torch.device) -> Any:
        """Give what serves tensors of that device."""
        return self if device.type == "cpu" else backend_in(self.device_group(device.type), device)

    def device_group(self, device_type: str) -> Any:
        """Return the process group of another device; the first use makes it, on every rank."""
        if device_type not in self._device_groups:
            self._device_groups[device_type] = make_device_group(
                device_type,
                GroupInfo(
                    PrefixStore(f"inner/{device_type}", self.store),
                    self._rank,
                    self._size,
                    self.timeout,
                    self._name,
                    self._in_world,
                    self._options,
                ),
            )
        return self._device_groups[device_type]

    def _start_coalescing(self, device: torch.device) -> None:
        """Begin to coalesce calls on tensors of another device."""
        self._coalescing(device)._start_coalescing(device)  # noqa: SLF001 - torch names it so

    def _end_coalescing(self, device: torch.device) -> Any:
        """Carry out what was coalesced; its Work is that of all calls."""
        return self._coalescing(device)._end_coalescing(device)  # noqa: SLF001 - the same

    def _coalescing(self, device: torch.device) -> Any:
        if device.type == "cpu":
            raise UsageError(
                "weft does not coalesce calls on CPU tensors by their device.",
                "Leave the device out, or make the calls one by one.",
            )
        return self.device_group(device.type)

    def set_timeout(self, timeout: timedelta) -> None:
        """Let a rank wait this long for the others."""
        self.timeout = timeout
        self.channel.set_timeout(timeout)
        for group in self._device_groups.values():
            group.set_timeout(timeout)

    def shutdown(self) -> None:
        """Leave the group; what is under way ends first.

        Not while an exception is handled: the others may never come to it, and are told at once.
        """
        self.completer.close()
        if sys.exc_info()[0] is None:
            with suppress(RunError):  # of a group that broke nothing can end
                self.channel.drain()
        self.channel.close()
        inner, self._device_groups = self._device_groups, {}
        for group in inner.values():
            group.shutdown()

    def abort(self) -> None:
        """Leave the group at once: whoever waits for this rank is told."""
        self.channel.abort()
        inner, self._device_groups = self._device_groups, {}
        for group in inner.values():
            group.abort()
        self.shutdown()


def _create(told: BackendOptions, options: Any) -> WeftProcessGroup:
    return WeftProcessGroup(
        told.store,
        told.group_rank,
        told.group_size,
        told.timeout,
        options=options,
        in_world=told.global_ranks_in_group,
    )


def register() -> None:
    """Let ``init_process_group("weft")`` find this; torch keeps a name for good."""
    if not hasattr(dist.Backend, "WEFT"):
        dist.Backend.register_backend("weft", _create, extended_api=True, devices=["cpu", "cuda"])
    install_batches()
