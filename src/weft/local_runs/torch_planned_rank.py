"""A rank that trains a model with or without its plan: -m weft.local_runs.torch_planned_rank."""

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

from weft._core import die_with
from weft.local_runs.rank_server import RankWork
from weft.local_runs.torch_joining import answer_until_told, join
from weft.local_runs.torch_planned_steps import PlannedSteps


class PlannedRank:
    """One process of a group."""

    def __init__(self, backend: str) -> None:
        self.rank = dist.get_rank()
        self.about = f"torch {torch.__version__} {backend}"

    def barrier(self) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def open(self, case: dict[str, Any]) -> RankWork:
        """Return the training step of a case."""
        return PlannedSteps(**case["planned"])


if __name__ == "__main__" and die_with(os.getppid()):
    join(sys.argv[1])
    answer_until_told(sys.argv[2], PlannedRank(sys.argv[1]))
