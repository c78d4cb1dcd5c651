"""Collective estimates of recorded jobs for Inductor's profile-guided overlap scheduling.

Inductor (torch 2.13, ``profile_guided_estimations_profile_path``) reads a Chrome trace and takes
the whole duration of each NCCL kernel for its cost, including the time in which the kernel waits
for ranks that come late. The profile written here has one kernel per group, size and dtype, whose
duration is the median time in which bytes moved.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from weft.trace.analysis.analysis_result import Analysis, CollectiveUse
from weft.trace.tensors import dtype_bytes

# What Inductor knows of collectives; the names are those of the process group.
_NAMES = {
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_reduce": "allreduce",
    "all_to_all": "all_to_allv",
}
# weft's names of types as torch.Tensor.type() writes them: Inductor compares the text.
_DTYPES = {
    "fp64": "Double",
    "fp32": "Float",
    "fp16": "Half",
    "bf16": "BFloat16",
    "bool": "Bool",
    "long": "Long",
    "int": "Int",
    "short": "Short",
    "char": "Char",
    "byte": "Byte",
    "float8e4m3fn": "Float8_e4m3fn",
    "float8e5m2": "Float8_e5m2",
}


@dataclass(frozen=True, slots=True)
class CollectiveEstimate:
    """How long the bytes of equal collectives move: the median of those recorded."""

    kind: str
    ranks: tuple[int, ...]
    nbytes: int
    dtype: str
    count: int
    moving: float
    seconds: float  # median of the whole kernels, with waiting
    basis: str

    def event(self, start: float) -> dict[str, Any]:
        """Return a kernel of a Chrome trace, as PyTorch's profiler writes it."""
        dtype, size = _DTYPES[self.dtype], len(self.ranks)
        count = self.nbytes // (dtype_bytes(dtype) or 1)
        inward = count // size if self.kind == "all_gather" else count
        outward = count // size if self.kind == "reduce_scatter" else count
        args = {
            "Collective name": _NAMES[self.kind],
            "Process Group Ranks": str(list(self.ranks)),
            "Group size": size,
            "In msg nelems": inward,
            "Out msg nelems": outward,
            "dtype": dtype,
        }
        head = {"ph": "X", "cat": "kernel", "name": f"nccl_{self.kind}", "pid": 0, "tid": 0}
        return {**head, "ts": start * 1e6, "dur": self.moving * 1e6, "args": args}


def collective_estimates(analysis: Analysis) -> tuple[CollectiveEstimate, ...]:
    """Return the collectives of all ranks by kind, group, size and dtype, smallest first."""
    groups: dict[tuple[str, tuple[int, ...], int, str], list[CollectiveUse]] = defaultdict(list)
    for rank in analysis.ranks:
        for use in rank.collectives:
            group = use.ranks
            if not group and use.num_ranks and use.num_ranks == rank.trace.world_size:
                group = tuple(range(use.num_ranks))
            if use.kind in _NAMES and use.dtype in _DTYPES and use.nbytes and use.moving and group:
                groups[use.kind, tuple(sorted(group)), use.nbytes, use.dtype].append(use)
    return tuple(
        CollectiveEstimate(
            *key,
            count=len(uses),
            moving=median(use.moving or 0.0 for use in uses),
            seconds=median(use.seconds for use in uses),
            basis="estimated" if any(use.basis != "measured" for use in uses) else "measured",
        )
        for key, uses in sorted(groups.items())
    )


def inductor_profile(estimates: Sequence[CollectiveEstimate]) -> str:
    """Return the text of a profile that Inductor loads."""
    return json.dumps({"traceEvents": list(_events(estimates))}, indent=1)


def _events(estimates: Sequence[CollectiveEstimate]) -> Iterator[dict[str, Any]]:
    start = 0.0
    for each in estimates:
        yield each.event(start)
        start += each.moving
