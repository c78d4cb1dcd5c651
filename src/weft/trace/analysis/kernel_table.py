"""The kernel table: which kernels, of which shapes, a rank spends its time in."""

from collections.abc import Sequence

import numpy as np

from weft.timeline.intervals import IntervalSet
from weft.trace.analysis.analysis_result import KernelUse
from weft.trace.analysis.kernel_families import COMMUNICATION, COPIES, family_of
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
            np.where(known, trace.columns.detail[operator], -1),
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
        if is_comm[first[n]]:
            family = COMMUNICATION
        elif distinct[1, n] != EventKind.KERNEL:
            family = COPIES
        else:
            family = family_of(name)
        row = int(operator[first[n]])
        out.append(
            KernelUse(
                family=family,
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
