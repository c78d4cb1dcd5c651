"""Classifies kernels into families by their names."""

import re
from collections.abc import Sequence

import numpy as np

from weft.timeline.intervals import IntervalSet
from weft.trace.analysis.analysis_result import TimePart
from weft.trace.analysis.kernel_slowdown import is_gemm_name
from weft.trace.trace import Bools, EventKind, Trace

GEMM, ATTENTION, CONVOLUTION = "matrix products", "attention", "convolutions"
NORM, OPTIMIZER, EMBEDDING = "normalization and softmax", "optimizer", "embeddings"
REDUCTION, ELEMENTWISE, COPIES = "reductions", "elementwise", "copies and sets"
COMMUNICATION, OTHER = "communication", "other kernels"
# The first match wins: names of attention and convolution kernels also contain gemm.
_FAMILIES = (
    (ATTENTION, r"flash|fmha|attention|\bsdpa|paged_attn"),
    (CONVOLUTION, r"conv|wgrad|dgrad|fprop|winograd|implicit_gemm|miopen"),
    (OPTIMIZER, r"multi_tensor_apply|adam|sgd|lamb(?!da)|foreach|optimizer"),
    (EMBEDDING, r"embedding|split_embedding|fbgemm|index_select|indexSelect"),
    (NORM, r"norm|softmax|welford"),
    (GEMM, ""),
    (REDUCTION, r"reduce|cumsum|scan|\bsort|topk"),
    (ELEMENTWISE, r"elementwise|triton_poi|vectorized|unrolled|fill|add_|mul_|gelu|relu|silu|copy"),
)
_PATTERNS = tuple((name, re.compile(text, re.IGNORECASE)) for name, text in _FAMILIES)


def family_of(name: str) -> str:
    """Return the family of a kernel that is not a collective.

    >>> family_of("ampere_sgemm_128x64_nn"), family_of("void at::native::reduce_kernel<512>()")
    ('matrix products', 'reductions')
    >>> family_of("flash_fwd_splitkv_kernel"), family_of("my_kernel")
    ('attention', 'other kernels')
    """
    for family, pattern in _PATTERNS:
        fits = is_gemm_name(name) if family == GEMM else pattern.search(name) is not None
        if fits:
            return family
    return OTHER


def families(
    trace: Trace, is_comm: Bools, windows: Sequence[tuple[float, float]]
) -> tuple[TimePart, ...]:
    """Return the seconds that each family covers in the mean window, or in total without windows.

    Families that run concurrently each count, so their sum may exceed the time.
    """
    rows = trace.gpu
    start, end = trace.columns.start[rows], trace.end[rows]
    within = IntervalSet.of([a for a, _ in windows], [b for _, b in windows])
    names = [family_of(name) for name in trace.names]
    labels = [*dict.fromkeys((*names, COPIES, COMMUNICATION))]
    place = {label: number for number, label in enumerate(labels)}
    label = np.array([place[name] for name in names] or [0])[trace.columns.name[rows]]
    label = np.where(trace.columns.kind[rows] == EventKind.KERNEL, label, place[COPIES])
    label = np.where(is_comm, place[COMMUNICATION], label)
    parts = []
    for number, name in enumerate(labels):
        mine = label == number
        cover = IntervalSet.of(start[mine], end[mine])
        if windows:
            mine &= within.within(start, end) > 0
            cover &= within
        each = max(len(windows), 1)
        parts.append(TimePart(name, cover.seconds / each, round(int(mine.sum()) / each)))
    return tuple(sorted((p for p in parts if p.seconds > 0), key=lambda p: -p.seconds))
