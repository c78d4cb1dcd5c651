"""One rank of the benchmark between hosts: weft's group and Gloo's, in turn."""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import weft.torch  # noqa: F401 - makes the backend known
from weft.bench.exchanges import Exchange
from weft.bench.torch_gloo import carried_in

SIDE = 768  # of the square matrices: some milliseconds each, several of them a round


def main() -> None:
    """Do the job that the arguments tell, and write what was found."""
    job, answer = json.loads(sys.argv[1]), Path(sys.argv[2])
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank * len(cores) // size]})
    dist.init_process_group("weft")
    groups = {"weft": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    found = (overlap if job["what"] == "overlap" else collective)(groups, job)
    if rank == 0:
        answer.write_text(json.dumps(found), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def overlap(groups: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Measure a GEMM, an all-gather, one after the other, and both at once."""
    x = torch.ones(job["nbytes"] // 4)
    out = torch.empty(2 * x.numel())
    left, right = torch.ones(SIDE, SIDE), torch.ones(SIDE, SIDE)
    room = torch.empty(SIDE, SIDE)
    all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    repeats = 1

    def gemm() -> None:
        for _ in range(repeats):
            torch.mm(left, right, out=room)

    def communicate(group: Any) -> Any:
        return all_gather(out, x, group=group, async_op=True)

    def both(group: Any) -> None:
        work = communicate(group)
        gemm()
        work.wait()

    def in_turn(group: Any) -> None:
        communicate(group).wait()
        gemm()

    def one_round(group: Any) -> dict[str, float]:
        return {
            "gemm": slowest(gemm),
            "all_gather": slowest(lambda: communicate(group).wait()),
            "serial": slowest(lambda: in_turn(group)),
            "concurrent": slowest(lambda: both(group)),
        }

    gemm()
    comm = min(slowest(lambda: communicate(groups["weft"]).wait()) for _ in range(3))
    repeats = 20
    repeats = max(1, round(comm / job["ratio"] / (slowest(gemm) / repeats)))
    for group in groups.values():
        one_round(group)
    times: dict[str, Any] = {name: [] for name in groups}
    for _ in range(job["rounds"]):
        for name, group in groups.items():
            times[name].append(one_round(group))
    return times


def collective(groups: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """Measure one collective, and count wrong elements."""
    rank, size = dist.get_rank(), dist.get_world_size()
    exchange = Exchange(job["kind"], job["nbytes"], size)
    carriers = {name: carried_in(group, exchange, rank) for name, group in groups.items()}
    wrong = sum(carrier.wrong(exchange, rank) for carrier in carriers.values())
    times: dict[str, Any] = {name: [] for name in groups}
    for _ in range(job["rounds"]):
        for name, carrier in carriers.items():
            times[name].append(slowest(carrier.act))
    return {**times, "wrong": int(total_of(wrong))}


def slowest(act: Callable[[], Any]) -> float:
    """Do it on all ranks at once; give the seconds of the slowest."""
    dist.barrier()
    begin = time.perf_counter()
    act()
    seconds = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return float(seconds)


def total_of(count: int) -> float:
    """Add a number over all ranks."""
    total = torch.tensor([count])
    dist.all_reduce(total)
    return float(total)


if __name__ == "__main__":
    main()
