"""A rank that trains small models and times their steps: -m benchmarks.torch_step_rank.

It stays on one core with all its threads, so that a step can be compared with one of another
process: see docs/notes/predict.md.
"""

import os
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.cost import cpu_seconds
from benchmarks.torch_trained_models import training
from weft._core import die_with
from weft.local_runs.rank_server import RankWork, pin
from weft.local_runs.synthetic_models import model_of
from weft.local_runs.torch_joining import answer_until_told, join

_WARMUPS = 3
_PROBE = 16 << 20  # bytes that the probe copies


class Trained:
    """Steps of one model; an answer times as many as take ``seconds``, and a memory copy."""

    def __init__(self, model: dict[str, Any], seconds: float) -> None:
        torch.manual_seed(0)
        self.act = training(model_of(model))
        self._source = np.ones(_PROBE // 8)
        self._copy = np.empty_like(self._source)
        for _ in range(_WARMUPS):
            self.act()
        begin = time.perf_counter()
        self.act()
        passed = torch.tensor(time.perf_counter() - begin)
        dist.all_reduce(passed, dist.ReduceOp.MAX)
        self._count = max(3, int(seconds / float(passed)))

    def answer(self) -> dict[str, Any]:
        """Train some steps."""
        dist.barrier()
        probe = min(self._probe() for _ in range(3))
        self.act()
        dist.barrier()
        used, start = cpu_seconds(), time.perf_counter()
        steps = []
        for _ in range(self._count):
            begin = time.perf_counter()
            self.act()
            steps.append(time.perf_counter() - begin)
        wall, used = time.perf_counter() - start, cpu_seconds() - used
        return {"steps": steps, "probe": probe, "cpu": used, "wall": wall}

    def _probe(self) -> float:
        begin = time.perf_counter()
        np.copyto(self._copy, self._source)
        return time.perf_counter() - begin

    def free(self) -> None:
        """Leave its memory to Python."""


class StepRank:
    """One process of a group."""

    def __init__(self, backend: str) -> None:
        self.rank = dist.get_rank()
        self.about = f"torch {torch.__version__} {backend}"

    def barrier(self) -> None:
        """Wait for the other ranks."""
        dist.barrier()

    def open(self, case: dict[str, Any]) -> RankWork:
        """Make a model and its step."""
        return Trained(**case)


if __name__ == "__main__" and die_with(os.getppid()):
    pin(int(os.environ["RANK"]))  # before there are any other threads, so that all stay there
    torch.set_flush_denormal(True)
    join(sys.argv[1])
    answer_until_told(sys.argv[2], StepRank(sys.argv[1]))
