"""A rank that pools by FBGEMM and exchanges by Gloo, in FBGEMM's environment."""

import sys
from importlib.metadata import version
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.lookups import lookups_of
from benchmarks.torch_lookups import Serial, fbgemm_bags
from weft.local_runs.torch_joining import answer_until_told, join


class FbgemmRank:
    """One process of a Gloo group."""

    def __init__(self) -> None:
        self.rank = dist.get_rank()
        self.about = f"fbgemm-gpu-cpu {version('fbgemm-gpu-cpu')}, torch {torch.__version__} gloo"

    def barrier(self) -> None:
        """Wait for the other ranks."""
        dist.barrier()

    def open(self, case: dict[str, Any]) -> Serial:
        """Make the tables of this rank."""
        lookups, here = lookups_of(case), (self.rank, dist.get_world_size())
        exchange = None if case["operator"] == "embedding" else dist.all_to_all_single
        return Serial(lookups, *here, fbgemm_bags(lookups, *here), exchange)


if __name__ == "__main__":
    join("gloo")
    answer_until_told(sys.argv[1], FbgemmRank())
