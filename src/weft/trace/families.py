"""What kinds of kernels a GPU spends its time in, by their names."""

import re
from collections.abc import Sequence

import numpy as np

from weft.trace.analysis import Part
from weft.trace.overlap import is_gemm_name
from weft.trace.trace import Bools, Kind, Trace

GEMM, ATTENTION, CONVOLUTION = "matrix products", "attention", "convolutions"
NORM, OPTIMIZER, EMBEDDING = "normalization and softmax", "optimizer", "embeddings"
REDUCTION, ELEMENTWISE, COPIES = "reductions", "elementwise", "copies and sets"
COMMUNICATION, OTHER = "communication", "other kernels"
# The first that fits: names of attention and convolution kernels speak of products too.
_FAMILIES = (
    (ATTENTION, r"flash|fmha|attention|\bsdpa|paged_attn"),
    (CONVOLUTION, r"conv|wgrad|dgrad|fprop|winograd|implicit_gemm|miopen"),
    (OPTIMIZER, r"multi_tensor_apply|adam|sgd|lamb|foreach|optimizer"),
    (EMBEDDING, r"embedding|split_embedding|fbgemm|index_select|indexSelect"),
    (NORM, r"norm|softmax|welford"),
    (GEMM, ""),
    (REDUCTION, r"reduce|cumsum|scan|\bsort|topk"),
    (ELEMENTWISE, r"elementwise|triton_poi|vectorized|unrolled|fill|add_|mul_|gelu|relu|silu|copy"),
)
_PATTERNS = tuple((name, re.compile(text, re.IGNORECASE)) for name, text in _FAMILIES)


def family_of(name: str) -> str:
    """Return the family of a kernel that is no collective.

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
) -> tuple[Part, ...]:
    """Sum the time of GPU events by family: in the mean window, or in all without windows.

    Kernels that run at the same time count each, so the sum may exceed the time.
    """
    rows = trace.gpu
    start, end = trace.columns.start[rows], trace.end[rows]
    spans = windows or [(-np.inf, np.inf)]
    seconds, count = np.zeros(len(rows)), np.zeros(len(rows))
    for first, last in spans:
        inside = np.maximum(np.minimum(end, last) - np.maximum(start, first), 0.0)
        seconds += inside / len(spans)
        count += (inside > 0) / len(spans)
    names = [family_of(name) for name in trace.names]
    labels = [*dict.fromkeys((*names, COPIES, COMMUNICATION))]
    place = {label: number for number, label in enumerate(labels)}
    label = np.array([place[name] for name in names] or [0])[trace.columns.name[rows]]
    label = np.where(trace.columns.kind[rows] == Kind.KERNEL, label, place[COPIES])
    label = np.where(is_comm, place[COMMUNICATION], label)
    total = np.bincount(label, seconds, len(labels))
    times = np.bincount(label, count, len(labels))
    parts = [Part(name, float(total[n]), round(float(times[n]))) for n, name in enumerate(labels)]
    return tuple(sorted((p for p in parts if p.seconds > 0), key=lambda p: -p.seconds))
