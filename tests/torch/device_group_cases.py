"""Process groups in Python behind another device than the CPU: what weft hands over to them.

``meta`` tensors stand for those of the device; ``stand_in`` has one with memory and a C++ backend.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import ProcessGroup
from torch.distributed import distributed_c10d

from weft.torch.backend.c10d import all_gather_single, reduce_scatter_single
from weft.torch.backend.c10d_work import COMPLETED

META = torch.device("meta")
OPTIONS = object()  # what a caller gives as pg_options


def empty(*shape):
    return torch.empty(shape, device=META)


def coalesced(call, device=None):
    with distributed_c10d._coalescing_manager(device=device):
        call()
        call()


# Calls, and what the group notes for them.
COALESCED = {
    "all_reduce": (lambda: coalesced(lambda: dist.all_reduce(empty(4))), ["allreduce_coalesced"]),
    "all_gather_into_tensor": (
        lambda: coalesced(lambda: all_gather_single(empty(8), empty(4))),
        ["all_gather_single_coalesced"],
    ),
    "reduce_scatter_tensor": (
        lambda: coalesced(lambda: reduce_scatter_single(empty(4), empty(8))),
        ["reduce_scatter_single_coalesced"],
    ),
    "messages by device": (
        lambda: coalesced(lambda: dist.send(empty(4), 1 - dist.get_rank()), META),
        ["_start_coalescing", "send", "send", "_end_coalescing"],
    ),
    "batch_isend_irecv": (
        lambda: [work.wait() for work in batch()],
        ["_start_coalescing", "send", "recv", "_end_coalescing"],
    ),
    "barrier": (lambda: world().barrier(of_device()), ["barrier"]),
}


def batch():
    peer = 1 - dist.get_rank()
    return dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, empty(4), peer), dist.P2POp(dist.irecv, empty(4), peer)]
    )


def of_device():
    """Options of a barrier as torch gives them where there is an accelerator."""
    opts: Any = dist.BarrierOptions()
    opts.device = META
    return opts


def world() -> Any:
    return dist.group.WORLD


class Noting(ProcessGroup):
    """Notes the names of the calls that reach it."""

    supports_coalescing = True

    def __init__(self, rank, size):
        super().__init__(rank, size)  # type: ignore[call-arg] # its stub misses this form
        self.noted, self.told = [], None

    def __getattribute__(self, name):
        if name in NOTED:
            return lambda *_, **__: self._note(name)
        return super().__getattribute__(name)

    def _note(self, name):
        self.noted.append(name)
        return COMPLETED


NOTED = {
    *("allreduce", "allreduce_coalesced", "all_gather_single_coalesced", "send", "recv", "barrier"),
    *("reduce_scatter_single_coalesced", "_start_coalescing", "_end_coalescing", "set_timeout"),
    *("shutdown", "abort"),
}


def noting(told, options):
    group = Noting(told.group_rank, told.group_size)
    group.told = options, told.group_size, list(told.global_ranks_in_group), told.timeout
    return group


def reach_group():
    """What a process group in Python is asked for, by call."""
    dist.Backend.register_backend("noting", noting, extended_api=True, devices=["meta"])
    group, found = world().device_group("meta"), {}
    for name, (call, _) in COALESCED.items():
        group.noted.clear()
        call()
        found[name] = list(group.noted)
    group.noted.clear()
    world().set_timeout(timedelta(seconds=50))
    x = torch.ones(3)
    dist.all_reduce(x)  # those of the CPU still go by weft
    return found, list(group.noted), x.tolist()


def keep_options():
    """What the inner group of a group with pg_options is told."""
    dist.Backend.register_backend("noting", noting, extended_api=True, devices=["meta"])
    group = dist.new_group([1, 0], timeout=timedelta(seconds=40), pg_options=OPTIONS)
    options, *others = group.device_group("meta").told
    return options is OPTIONS, others


def end(how):
    """What the inner group is told when the group ends."""
    dist.Backend.register_backend("noting", noting, extended_api=True, devices=["meta"])
    group = dist.new_group([0, 1])
    inner = group.device_group("meta")
    dist.barrier()
    getattr(group, how)()
    return inner.noted


def without_backend():
    """What a call on tensors of a device is told for which torch has no backend."""
    try:
        dist.all_reduce(empty(4))
    except ValueError as error:
        return str(error)
    return ""
