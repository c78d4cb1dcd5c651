"""How much longer kernels take while they overlap communication.

The same kernel occurs at the same place of every step. Some steps overlap it with communication and
others do not: the ratio of the two means is its slowdown. The place is the kernel's name, its grid
and its ordinal among those in the step; names and grids alone mix shapes, because persistent
kernels share grids.

Single kernels vary by as much, so a family is reported from ``FEWEST_PAIRS`` places on.
"""

import re
from statistics import median

import numpy as np

from weft.timeline.intervals import IntervalSet
from weft.trace.analysis.analysis_result import KernelSlowdown
from weft.trace.analysis.steps import TraceSteps
from weft.trace.trace import Bools, EventKind, Floats, Ints, Trace

FEWEST_PAIRS = 5  # places at which kernels of a family were seen with and without overlap
_OVERLAPPED, _ALONE = 0.9, 0.05  # fraction of a kernel that communication covers
_SHORTEST = 10e-6  # seconds: clocks of old profilers tick in microseconds
_GEMM = re.compile(r"gemm|Cijk_|cutlass.*Kernel2?<|_tn_|_nn_|_nt_|matmul|xmma|nvjet", re.IGNORECASE)


def is_gemm_name(name: str) -> bool:
    """Return whether a kernel name is that of a matrix product.

    >>> is_gemm_name("ampere_sgemm_128x64_nn"), is_gemm_name("Cijk_Ailk_Bljk_HHS")
    (True, True)
    >>> is_gemm_name("void at::native::vectorized_elementwise_kernel<4>()")
    False
    """
    return _GEMM.search(name) is not None


def slowdowns(
    trace: Trace, steps: TraceSteps, is_comm: Bools, comm: IntervalSet
) -> tuple[KernelSlowdown, ...]:
    """Compare equal kernels of different steps, overlapped and alone."""
    chosen = (steps.of >= 0) & ~is_comm & (trace.columns.kind[trace.gpu] == EventKind.KERNEL)
    rows, step = trace.gpu[chosen], steps.of[chosen]
    if not len(rows) or not len(comm.start):
        return ()
    seconds = trace.columns.duration[rows]
    with np.errstate(invalid="ignore"):
        share = np.where(
            seconds > 0, comm.within(trace.columns.start[rows], trace.end[rows]) / seconds, 0.5
        )
    place = _places(trace, rows, step)
    over = _means(place, seconds, share > _OVERLAPPED)
    alone = _means(place, seconds, share < _ALONE)
    both = np.flatnonzero((over > 0) & (alone >= _SHORTEST))
    first = np.full(len(over), -1)
    first[place[::-1]] = np.arange(len(rows))[::-1]
    gemm = trace.named(rows[first[both]], is_gemm_name)
    lost = np.bincount(
        place, np.where(share > _OVERLAPPED, seconds - alone[place], 0.0), minlength=len(over)
    )
    out = []
    for family, mine in (("GEMM", both[gemm]), ("other", both[~gemm])):
        if len(mine) >= FEWEST_PAIRS:
            out.append(_slowdown(family, over[mine], alone[mine], float(lost[mine].sum())))
    return tuple(out)


def _slowdown(family: str, over: Floats, alone: Floats, lost: float) -> KernelSlowdown:
    ratio = over / alone
    return KernelSlowdown(
        family=family,
        num_pairs=len(ratio),
        median=median(ratio.tolist()),
        weighted=float(over.sum() / alone.sum()),
        p90=float(np.sort(ratio)[int(0.9 * (len(ratio) - 1) + 0.5)]),
        lost=max(lost, 0.0),
    )


def _means(place: Ints, seconds: Floats, chosen: Bools) -> Floats:
    size = int(place.max()) + 1
    count = np.bincount(place[chosen], minlength=size)
    total = np.bincount(place[chosen], seconds[chosen], size)
    return np.where(count > 0, total / np.maximum(count, 1), 0.0)


def _places(trace: Trace, rows: Ints, step: Ints) -> Ints:
    """Number the places of a step: name, grid, and ordinal in launch order."""
    launched = trace.columns.start[trace.launch[rows]]
    kernel = np.zeros(len(rows), np.int64)
    for column in (trace.columns.name, trace.columns.detail, trace.columns.stream):
        values, number = np.unique(column[rows], return_inverse=True)
        kernel = np.unique(kernel * len(values) + number, return_inverse=True)[1]
    order = np.lexsort((launched, kernel, step))
    new = np.ones(len(order), bool)
    new[1:] = (np.diff(kernel[order]) != 0) | (np.diff(step[order]) != 0)
    run = np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))
    nth = np.empty(len(order), np.int64)
    nth[order] = np.arange(len(order)) - run
    place: Ints = np.unique(kernel * (int(nth.max()) + 1) + nth, return_inverse=True)[1]
    return place.reshape(-1)
