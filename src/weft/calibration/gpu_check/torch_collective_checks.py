"""Correctness of collectives and kernels: exact values, repeated, with poison and delays.

Inputs are small integers, so sums are exact in every dtype and order. What each rank must hold is
computed here, and its checksum over all ranks stands in ``expectations``: a wrong formula would not
agree with what was stored.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from weft.calibration.gpu_check.torch_check_device import CheckJob

# torch 2.13 renamed them; earlier ones have the longer names.
all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter: Callable[..., Any] = getattr(
    dist, "reduce_scatter_single", dist.reduce_scatter_tensor
)
COUNT = 840  # elements of one rank's part: divisible by up to 8 ranks
REPEATS = 20


def values(rank: int, count: int, repeat: int) -> torch.Tensor:
    """Return the input of a rank: integers from 0 to 15, other ones in every repeat."""
    at = torch.arange(count, dtype=torch.int64)
    return ((at * 31 + rank * 17 + repeat * 7 + at // 5 * rank) % 16).float()


Inputs = list[torch.Tensor]


def _all_reduce(out: torch.Tensor, mine: torch.Tensor, _n: int) -> None:
    out.copy_(mine)
    dist.all_reduce(out)


def _broadcast(out: torch.Tensor, mine: torch.Tensor, n: int) -> None:
    out.copy_(mine)
    dist.broadcast(out, n - 1)


def _send(out: torch.Tensor, mine: torch.Tensor, n: int) -> None:
    rank = dist.get_rank()
    if n == 1:
        out.copy_(mine)
        return
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, mine, (rank + 1) % n),
            dist.P2POp(dist.irecv, out, (rank - 1) % n),
        ]
    )
    for work in works:
        work.wait()


@dataclass(frozen=True, slots=True)
class CollectiveCase:
    """A collective: elements of its input and output by ranks, how it is called, what it gives."""

    sizes: Callable[[int], tuple[int, int]]
    call: Callable[[torch.Tensor, torch.Tensor, int], Any]
    want: Callable[[Inputs, int], torch.Tensor]


def _part(x: torch.Tensor, rank: int, n: int) -> torch.Tensor:
    return x.chunk(n)[rank]


CASES: dict[str, CollectiveCase] = {
    "all_reduce": CollectiveCase(
        lambda _n: (COUNT, COUNT), _all_reduce, lambda given, _r: torch.stack(given).sum(0)
    ),
    "all_gather": CollectiveCase(
        lambda n: (COUNT, COUNT * n),
        lambda out, mine, _n: all_gather(out, mine),
        lambda given, _r: torch.cat(given),
    ),
    "reduce_scatter": CollectiveCase(
        lambda n: (COUNT * n, COUNT),
        lambda out, mine, _n: reduce_scatter(out, mine),
        lambda given, r: _part(torch.stack(given).sum(0), r, len(given)),
    ),
    "all_to_all": CollectiveCase(
        lambda n: (COUNT * n, COUNT * n),
        lambda out, mine, _n: dist.all_to_all_single(out, mine),
        lambda given, r: torch.cat([_part(each, r, len(given)) for each in given]),
    ),
    "broadcast": CollectiveCase(lambda _n: (COUNT, COUNT), _broadcast, lambda given, _r: given[-1]),
    "send_recv": CollectiveCase(
        lambda _n: (COUNT, COUNT), _send, lambda given, r: given[(r - 1) % len(given)]
    ),
}


def wanted(kind: str, rank: int, num_ranks: int, repeat: int) -> torch.Tensor:
    """Return what a rank must hold after a collective."""
    case = CASES[kind]
    count, _ = case.sizes(num_ranks)
    return case.want([values(each, count, repeat) for each in range(num_ranks)], rank)


def checksum(kind: str, num_ranks: int) -> int:
    """Return the checksum of what all ranks hold after the first repeat."""
    found = 0
    for rank in range(num_ranks):
        found = zlib.crc32(wanted(kind, rank, num_ranks, 0).numpy().tobytes(), found)
    return found


def check_collective(job: CheckJob, kind: str, dtype: torch.dtype) -> dict[str, Any]:
    """Run a collective repeatedly; return whether every rank held the right values every time."""
    case, n = CASES[kind], job.num_ranks
    count, size = case.sizes(n)
    wrong = 0
    for repeat in range(REPEATS):
        mine = values(job.rank, count, repeat).to(job.device.device, dtype)
        out = torch.full((size,), torch.nan, device=job.device.device, dtype=dtype)
        if (repeat + job.rank) % 3 == 0:
            job.device.delay(2e-4)
        case.call(out, mine, n)
        job.device.synchronize()
        want = wanted(kind, job.rank, n, repeat).to(dtype)
        wrong += int(not torch.equal(out.cpu(), want))
    known = CHECKSUMS.get((kind, n))
    agrees = known is None or known == checksum(kind, n)
    total = sum(job.gather(wrong))
    return {
        "case": f"{kind} {dtype}".replace("torch.", ""),
        "repeats": REPEATS,
        "wrong": total,
        "stored": "none for so many ranks" if known is None else "agrees" if agrees else "differs",
        "passed": not total and agrees,
    }


# What all ranks hold after each collective, by kind and number of ranks. Computed once on the CPU
# (``checksum``) and stored, so that an error in the formulas of a later version does not hide an
# error of a machine.
CHECKSUMS: dict[tuple[str, int], int] = {
    ("all_reduce", 1): 0x23B10AB9,
    ("all_reduce", 2): 0x790B0D03,
    ("all_reduce", 4): 0x3894ADE5,
    ("all_reduce", 8): 0x47F57B15,
    ("all_gather", 1): 0x23B10AB9,
    ("all_gather", 2): 0xA1C1E9AD,
    ("all_gather", 4): 0x2380CE5E,
    ("all_gather", 8): 0x37627AE1,
    ("reduce_scatter", 1): 0x23B10AB9,
    ("reduce_scatter", 2): 0x83D20D74,
    ("reduce_scatter", 4): 0x6B85E1B8,
    ("reduce_scatter", 8): 0x9B4813FB,
    ("all_to_all", 1): 0x23B10AB9,
    ("all_to_all", 2): 0x53339FCB,
    ("all_to_all", 4): 0x2114BE6B,
    ("all_to_all", 8): 0xD379F08E,
    ("broadcast", 1): 0x23B10AB9,
    ("broadcast", 2): 0xC748ED05,
    ("broadcast", 4): 0xAE469763,
    ("broadcast", 8): 0x5BF685B6,
    ("send_recv", 1): 0x23B10AB9,
    ("send_recv", 2): 0xC73945C2,
    ("send_recv", 4): 0xEFF4E980,
    ("send_recv", 8): 0xF271C02C,
}
