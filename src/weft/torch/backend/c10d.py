"""Names of torch.distributed that weft needs, for all supported versions of torch."""

from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    PrefixStore,
    ProcessGroup,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
    Store,
    Work,
    _DistributedBackendOptions,
)
from torch.distributed import distributed_c10d

from weft.torch.c10d_collectives import BY_METHOD

__all__ = [
    "ALL_GATHER",
    "ALL_REDUCE",
    "ALL_REDUCE_COALESCED",
    "ALL_TO_ALL",
    "BARRIER",
    "BROADCAST",
    "GATHER",
    "REDUCE",
    "REDUCE_SCATTER",
    "SCATTER",
    "BackendOptions",
    "GroupName",
    "PrefixStore",
    "ProcessGroup",
    "Store",
    "Work",
    "all_gather_single",
    "method_of",
    "reduce_scatter_single",
]

BackendOptions = _DistributedBackendOptions
GroupName: Any = getattr(distributed_c10d, "GroupName", str)  # a str with a type of its own

# The default options of calls: root 0, sum, asynchronous.
ALL_GATHER = AllgatherOptions()
ALL_REDUCE = AllreduceOptions()
ALL_REDUCE_COALESCED = AllreduceCoalescedOptions()
ALL_TO_ALL = AllToAllOptions()
BARRIER = BarrierOptions()
BROADCAST = BroadcastOptions()
GATHER = GatherOptions()
REDUCE = ReduceOptions()
REDUCE_SCATTER = ReduceScatterOptions()
SCATTER = ScatterOptions()

# torch 2.13 renamed them and warns about the old names.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def method_of(group: Any, name: str) -> Any:
    """Return a collective of a group by its name in torch 2.13, whichever name the group has."""
    known = BY_METHOD.get(name)
    older = known.older_method if known else ""
    if older and not _defines(type(group), name) and _defines(type(group), older):
        return getattr(group, older)
    return getattr(group, name, None) or getattr(group, older)


def _defines(kind: type, name: str) -> bool:
    """Return whether a class has a method that is not the one of every ProcessGroup."""
    found = getattr(kind, name, None)
    return found is not None and found is not getattr(ProcessGroup, name, None)
