"""One rank of the benchmark between hosts: weft's group and Gloo's, in turn."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import weft.torch  # noqa: F401 - makes the backend known
from benchmarks.collective_case import CollectiveCase
from benchmarks.torch_links import fused
from benchmarks.torch_rank import carried_in
from benchmarks.torch_rank_timing import slowest
from benchmarks.torch_weight_updates import updates
from weft.torch.backend.c10d import all_gather_single

SIDE = 768  # of the square matrices: some milliseconds each, several of them a round


def main() -> None:
    """Run the job of the arguments, and write its results."""
    job, answer = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if job.get("pinned", True):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank * len(cores) // size]})
    dist.init_process_group("weft")
    groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    acts = {"overlap": overlap, "collectives": collectives, "fused": fused, "updates": updates}
    found = acts[job["what"]](groups, job)
    if rank == 0:
        answer.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def overlap(groups: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Measure a GEMM, an all-gather, one after the other, and both at once."""
    sides = {name: Overlapped(group, job["nbytes"]) for name, group in groups.items()}
    for side in sides.values():
        side.fit(job["ratio"])
        side.one_round()
    times: dict[str, Any] = {name: [] for name in groups}
    for _ in range(job["rounds"]):
        for name, side in sides.items():
            times[name].append(side.one_round())
    return times


class Overlapped:
    """A GEMM and an all-gather in one group."""

    def __init__(self, group: Any, nbytes: int) -> None:
        self._group = group
        self._x = torch.ones(nbytes // 4)
        self._out = torch.empty(2 * self._x.numel())
        self._left, self._right = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
        self._product = torch.empty(SIDE, SIDE)
        self._repeats = 20

    def fit(self, ratio: float) -> None:
        """Choose how often to multiply: communication takes ``ratio`` times as long."""
        self.gemm()
        each = min(slowest(self.gemm) for _ in range(3)) / self._repeats
        comm = min(slowest(lambda: self.communicate().wait()) for _ in range(4))
        self._repeats = max(1, round(comm / ratio / each))

    def gemm(self) -> None:
        """Multiply."""
        for _ in range(self._repeats):
            torch.mm(self._left, self._right, out=self._product)

    def communicate(self) -> Any:
        """Begin to gather."""
        return all_gather_single(self._out, self._x, group=self._group, async_op=True)

    def in_turn(self) -> None:
        """Gather, then multiply."""
        self.communicate().wait()
        self.gemm()

    def both(self) -> None:
        """Multiply while gathering."""
        work = self.communicate()
        self.gemm()
        work.wait()

    def one_round(self) -> dict[str, float]:
        """Measure each once."""
        return {
            "gemm": slowest(self.gemm),
            "all_gather": slowest(lambda: self.communicate().wait()),
            "serial": slowest(self.in_turn),
            "concurrent": slowest(self.both),
        }


def collectives(groups: dict[str, Any], job: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure collectives one after another."""
    return [_collective(groups, job["rounds"], **asked) for asked in job["asked"]]


def _collective(groups: dict[str, Any], rounds: int, kind: str, nbytes: int) -> dict[str, Any]:
    """Measure one, and count wrong elements."""
    rank = dist.get_rank()
    exchange = CollectiveCase(kind, nbytes, dist.get_world_size())
    carriers = {name: carried_in(group, exchange, rank) for name, group in groups.items()}
    wrong = sum(carrier.answer() for carrier in carriers.values())
    times: dict[str, Any] = {name: [] for name in groups}
    for _ in range(rounds):
        for name, carrier in carriers.items():
            times[name].append(slowest(carrier.act))
    return {**times, "kind": kind, "nbytes": nbytes, "wrong": int(total_of(wrong))}


def total_of(count: int) -> float:
    """Add a number over all ranks."""
    total = torch.tensor([count])
    dist.all_reduce(total)
    return float(total)


if __name__ == "__main__":
    main()
