"""Which kernels a rank spends its time in: by family, and by name and shape."""

import re
from collections.abc import Sequence

import numpy as np

from weft.timeline.intervals import IntervalSet
from weft.trace.analysis.analysis_result import KernelUse, TimePart
from weft.trace.analysis.kernel_slowdown import is_gemm_name
from weft.trace.tensors import dtype_name, tensors_of
from weft.trace.trace import Bools, EventKind, Ints, Trace

_MOST = 200  # rows of a table: the rest is the tail of tiny kernels


def kernel_table(
    trace: Trace, is_comm: Bools, windows: Sequence[tuple[float, float]]
) -> tuple[KernelUse, ...]:
    """Return GPU events by name and by the shapes of their operator, the longest first.

    With ``windows`` only the events that begin in one of them count: those of the mean step.
    """
    rows = trace.gpu
    start = trace.columns.start[rows]
    if windows:
        inside = IntervalSet.of([a for a, _ in windows], [b for _, b in windows])
        tick = np.finfo(float).eps * np.maximum(np.abs(start), 1.0)
        kept = inside.within(start, start + 4 * tick) > 0
        rows, is_comm = rows[kept], is_comm[kept]
    if not len(rows):
        return ()
    seconds = trace.columns.duration[rows]
    operator = operators(trace, rows)
    known = operator >= 0
    keys = np.stack(
        [
            trace.columns.name[rows],
            trace.columns.kind[rows],
            np.where(known, trace.columns.name[operator], -1),
            _shapes(trace, operator),
        ]
    )
    distinct, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    total = np.bincount(group, weights=seconds)
    count = np.bincount(group)
    least = np.full(len(total), np.inf)
    np.minimum.at(least, group, seconds)
    most = np.zeros(len(total))
    np.maximum.at(most, group, seconds)
    first = np.full(len(total), len(rows))
    np.minimum.at(first, group, np.arange(len(rows)))
    whole = float(seconds.sum()) or 1.0
    out = []
    for n in np.argsort(-total, kind="stable")[:_MOST].tolist():
        name = trace.names[int(distinct[0, n])]
        is_kernel = distinct[1, n] == EventKind.KERNEL
        row = int(operator[first[n]])
        out.append(
            KernelUse(
                family=_family(name, is_comm=bool(is_comm[first[n]]), is_kernel=is_kernel),
                name=name,
                operator=trace.name_of(row) if row >= 0 else "",
                shape=shape_text(trace, row),
                count=int(count[n]),
                seconds=float(total[n]),
                share=float(total[n]) / whole,
                shortest=float(least[n]),
                longest=float(most[n]),
            )
        )
    return tuple(out)


def _shapes(trace: Trace, operator: Ints) -> Ints:
    """Number the shapes of operators; their other arguments, as sequence numbers, do not count."""
    detail = np.where(operator >= 0, trace.columns.detail[operator], -1)
    _, first, which = np.unique(detail, return_index=True, return_inverse=True)
    numbers: dict[str, int] = {}
    texts = (shape_text(trace, row) for row in operator[first].tolist())
    found = np.array([numbers.setdefault(text, len(numbers)) for text in texts], np.int64)
    return found[which.reshape(-1)]


def operators(trace: Trace, rows: Ints) -> Ints:
    """Return the row of the innermost operator that launched each GPU event, or -1."""
    at = trace.launch[rows].astype(np.int64)
    found = np.full(len(rows), -1, np.int64)
    while (open_ := np.flatnonzero((at >= 0) & (found < 0))).size:
        is_op = trace.columns.kind[at[open_]] == EventKind.OP
        found[open_[is_op]] = at[open_[is_op]]
        at[open_] = trace.parent[at[open_]]
    return found


def shape_text(trace: Trace, row: int) -> str:
    """Return the shapes and types of an operator's input tensors, as ``[8, 512] [512] bf16``."""
    tensors = [t for t in tensors_of(trace.detail_of(row)) if t.shape] if row >= 0 else []
    types = dict.fromkeys(dtype_name(tensor.dtype) for tensor in tensors)
    return " ".join([*(str(list(tensor.shape)) for tensor in tensors), *filter(None, types)])


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


def _family(name: str, *, is_comm: bool, is_kernel: bool) -> str:
    if is_comm:
        return COMMUNICATION
    return family_of(name) if is_kernel else COPIES


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
