"""What torch.distributed is made of, as far as weft needs it: torch's own names in one place."""

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
)

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
    "PrefixStore",
    "ProcessGroup",
    "Store",
    "Work",
    "all_gather_single",
    "reduce_scatter_single",
]

# The options of a call that gives none: rank 0 is the root, sums, in the background.
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

# torch 2.13 gave them new names and warns about the old ones.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
