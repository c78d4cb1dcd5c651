"""A rank of torch.distributed, whichever backend it has: -m benchmarks.torch_rank."""

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.collective_case import CollectiveCase, RankCall, arrays_of, collective_case_of
from benchmarks.lookups import lookups_of
from benchmarks.torch_broadcast import SentWeights
from benchmarks.torch_dlrm import Dlrm
from benchmarks.torch_lookups import Fused, Serial, torch_bags
from benchmarks.torch_pooling import PoolingOnly
from benchmarks.torch_shm_rank import tensor_of
from benchmarks.torch_training import Training
from benchmarks.torch_zero import ZeroTraining
from weft._core import die_with
from weft.local_runs.rank_server import RankWork
from weft.local_runs.torch_joining import answer_until_told, join
from weft.local_runs.torch_planned_steps import PlannedSteps


class TorchRank:
    """One process of a group; its tensors are ordinary ones."""

    def __init__(self, backend: str) -> None:
        self.rank = dist.get_rank()
        self._backend = backend
        self.about = f"torch {torch.__version__} {backend}"

    def barrier(self) -> None:
        """Wait for the other ranks."""
        dist.barrier()

    def open(self, case: dict[str, Any]) -> RankWork:
        """Make a training step, or a collective on ordinary tensors."""
        if "gradients" in case:
            return Training(**case)
        if "operator" in case:
            return self._looking(case)
        if "planned" in case:
            return PlannedSteps(**case["planned"])
        if "layers" in case:
            return ZeroTraining(**case)
        if "algorithm" in case:
            return SentWeights(**case)
        return carried_in(None, collective_case_of(case, dist.get_world_size()), self.rank)

    def _looking(self, case: dict[str, Any]) -> RankWork:
        """Make lookups, or a training step around them, for whichever backend this is."""
        lookups, here = lookups_of(case), (self.rank, dist.get_world_size())
        fused = self._backend == "weft"
        if case["operator"] == "dlrm_step":
            return Dlrm(lookups, *here, fused=fused)
        if case["operator"] == "embedding":
            if fused:
                return PoolingOnly(lookups)
            return Serial(lookups, *here, torch_bags(lookups, *here), None)
        if fused:
            return Fused(lookups, *here)
        return Serial(lookups, *here, torch_bags(lookups, *here), dist.all_to_all_single)


def carried_in(group: Any, exchange: CollectiveCase, rank: int) -> RankCall:
    """Return an exchange on ordinary tensors by a process group, by default the default one."""
    x, out = arrays_of(exchange, rank)
    there, here = tensor_of(out), tensor_of(x)
    # By the names that a program would use; older torch has older ones.
    all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
    acts: dict[str, Callable[[], Any]] = {
        "broadcast": partial(dist.broadcast, here, 0, group=group),
        "all_gather": partial(all_gather, there, here, group=group),
        "reduce_scatter": partial(reduce_scatter, there, here, group=group),
        "all_reduce": partial(dist.all_reduce, here, group=group),
        "all_to_all": partial(dist.all_to_all_single, there, here, group=group),
    }
    return RankCall(exchange, rank, x, out, acts[exchange.kind])


if __name__ == "__main__" and die_with(os.getppid()):
    join(sys.argv[1])
    answer_until_told(sys.argv[2], TorchRank(sys.argv[1]))
