"""The process group of the backend ``weft``."""

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
from weft.torch.backend.c10d import BackendOptions, GroupName, PrefixStore, Store
from weft.torch.backend.c10d_work import FutureCompleter
from weft.torch.backend.device_groups import (
    GroupInfo,
    backend_in,
    configured_backends,
    make_device_group,
    split_device_group,
)
from weft.torch.backend.dist_functions import install_dist_functions
from weft.torch.backend.fast_path import FastPathCollectives
from weft.torch.backend.p2p_queue import P2PQueue
from weft.torch.backend.send_recv import SendRecv
from weft.torch.backend.store_rendezvous import rendezvous

__all__ = ["WeftProcessGroup", "register"]


class WeftProcessGroup(FastPathCollectives, SendRecv):
    """One rank's view of a group: a world in shared memory for CPU tensors.

    Tensors of other devices are passed to a process group of their device, which is created on
    first use with the ``pg_options`` of this one.

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
        self._num_splits = 0
        self._device_groups: dict[str, Any] = {}
        self._in_flight = []
        self._keeping = threading.RLock()
        # Shared memory inside a host; across hosts a World a host with Gloo between leaders.
        self.channel = rendezvous(store, rank, size, timeout)
        self.completer = FutureCompleter(self.channel.progress_seconds)
        self.dispatch_cache = self.channel.dispatch_cache
        self.p2p_queue = P2PQueue(self.channel)

    def size(self) -> int:
        """Return the number of ranks."""
        return self._size

    def rank(self) -> int:
        """Return the rank of this process."""
        return self._rank

    def getBackendName(self) -> str:  # noqa: N802 - torch names it
        """Return the name of the backend."""
        return "weft"

    def name(self) -> str:
        """Return the name of the backend."""
        return "weft"

    getRank, getSize = rank, size  # noqa: N815 - torch names them

    def getGroupName(self) -> str:  # noqa: N802
        """Return the group's name."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Set the group's name."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the group's description."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # noqa: N802
        """Set the group's description."""
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
        """The devices of tensors that a backend was asked for or created; objects use the CPU."""
        known = dict.fromkeys(("cpu", *configured_backends(self), *self._device_groups))
        return [torch.device(name) for name in known]

    def _get_backend(self, device: torch.device) -> Any:
        """Return the backend of a device."""
        return self if device.type == "cpu" else backend_in(self.device_group(device.type), device)

    def device_group(self, device_type: str) -> Any:
        """Return the process group of another device; the first use creates it, on every rank."""
        if device_type not in self._device_groups:
            self._device_groups[device_type] = make_device_group(
                self,
                device_type,
                GroupInfo(
                    # Keys of its own, because its ranks meet in the store as those of weft did.
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
        """Start coalescing calls on tensors of another device."""
        self._coalescing(device)._start_coalescing(device)  # noqa: SLF001 - torch names it so

    def _end_coalescing(self, device: torch.device) -> Any:
        """Execute the coalesced calls; return the Work of all of them."""
        return self._coalescing(device)._end_coalescing(device)  # noqa: SLF001 - the same

    def _coalescing(self, device: torch.device) -> Any:
        if device.type == "cpu":
            raise UsageError(
                "device: coalescing is not supported for CPU tensors.",
                "Omit the device, or make the calls one by one.",
            )
        return self.device_group(device.type)

    def get_group_store(self) -> Store:
        """Return the store by which the ranks found each other."""
        return self.store

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Any = None,
    ) -> "WeftProcessGroup | None":
        """Return a group of some ranks, None on other ranks; every rank makes the call.

        The groups of other devices are split by their backends, as NCCL splits communicators.
        """
        ranks, limit, made = list(new_ranks), timeout or self.timeout, None
        self._num_splits += 1
        name = group_name or f"{self._name}:split:{self._num_splits}:{ranks}"
        if self._rank in ranks:
            made = WeftProcessGroup(
                PrefixStore(f"{name}/", self.store),
                ranks.index(self._rank),
                len(ranks),
                limit,
                options=opts,
                in_world=[self._in_world[rank] for rank in ranks] if self._in_world else ranks,
            )
            made.setGroupName(name)
            made.setGroupDesc(group_desc or "")
        wanted = {each.type for each in device_types or self._device_types}
        for kind in sorted(wanted & self._device_groups.keys()):
            how = ranks, limit, opts, GroupName(f"{name}/{kind}"), group_desc
            part = split_device_group(self._device_groups[kind], kind, made, *how)
            if made is not None:
                made._device_groups[kind] = part
        return made

    def set_timeout(self, timeout: timedelta) -> None:
        """Set how long a rank waits for the others."""
        self.timeout = timeout
        self.channel.set_timeout(timeout)
        for group in self._device_groups.values():
            group.set_timeout(timeout)

    def shutdown(self) -> None:
        """Leave the group after the calls in flight.

        While an exception is handled it does not wait: the other ranks may never make these calls.
        """
        # destroy_process_group() in a finally clause must not hang on peers that failed.
        error = sys.exc_info()[1]
        if error is None:
            self.completer.close()
            with suppress(RunError):  # the group has failed
                self.channel.drain()
        else:
            self.channel.interrupt(error)
        self.channel.close()
        self.p2p_queue.close()
        self.completer.close()  # its works have ended with the channel
        inner, self._device_groups = self._device_groups, {}
        for group in inner.values():
            group.shutdown()

    def abort(self) -> None:
        """Leave the group at once; ranks that wait for this one get an error."""
        self.channel.abort()
        inner, self._device_groups = self._device_groups, {}
        for group in inner.values():
            group.abort()
        self.shutdown()


def _create(info: BackendOptions, options: Any) -> WeftProcessGroup:
    return WeftProcessGroup(
        info.store,
        info.group_rank,
        info.group_size,
        info.timeout,
        options=options,
        in_world=info.global_ranks_in_group,
    )


def register() -> None:
    """Register the backend ``weft`` of ``init_process_group``; torch keeps a name permanently."""
    if not hasattr(dist.Backend, "WEFT"):
        dist.Backend.register_backend("weft", _create, extended_api=True, devices=["cpu"])
    install_batches()
    install_dist_functions()
