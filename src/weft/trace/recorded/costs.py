"""What a recorded kernel computes, from the operator that launched it: by that it can be scaled.

A kernel keeps its measured duration, times what the cost model says of the other device over what
it says of this one. So what the model gets wrong on both cancels. Where the trace has no shapes,
kernels of the same name say how it scales, and failing that the rates of the two devices.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import prod, sqrt
from typing import Any, NamedTuple

import numpy as np

from weft.cost import price
from weft.cost.peak_rates import flops_of
from weft.hardware import Device
from weft.schedule import Cost
from weft.trace import EventKind, Trace
from weft.trace.analysis.kernel_slowdown import is_gemm_name
from weft.trace.recorded.calls import Calls
from weft.trace.tensors import dtype_name, tensors_of

Shape = tuple[int, ...]
# Operators that overwrite their first input, and those that read no more of it than they write.
_OVERWRITES = frozenset(
    f"aten::{name}" for name in ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_")
)
_PICKS = frozenset(f"aten::{name}" for name in ("embedding", "index_select", "index", "gather"))
_PRODUCTS = {"aten::mm": 0, "aten::addmm": 1, "aten::_scaled_mm": 0}  # where the operands begin
_FLOATS = ("fp64", "fp32", "fp16", "bf16")  # integers are moved like any other bytes
_BATCHED = {"aten::bmm": 0, "aten::baddbmm": 1}
_ROWS = {
    "aten::native_layer_norm": "norm",
    "aten::_softmax": "softmax",
    "aten::_log_softmax": "softmax",
    "aten::native_layer_norm_backward": "norm-backward",
    "aten::_softmax_backward_data": "softmax-backward",
}


class Scale(NamedTuple):
    """How many times as long a kernel takes on the other device."""

    value: float
    low: float
    high: float


def scales(trace: Trace, calls: Calls, here: Device, there: Device) -> list[Scale]:
    """Return for every call how what it launched scales from one device to another."""
    known = [None if cost is None else _scale(cost, here, there) for cost in costs_of(trace, calls)]
    # The mean scale of each name, each kernel weighing as long as it took.
    found: dict[str, list[tuple[float, Scale]]] = defaultdict(list)
    for number, scale in enumerate(known):
        if scale is not None:
            found[calls.name[number]].append((max(float(calls.seconds[number]), 1e-9), scale))
    by_name = {
        name: Scale(*np.average([s for _, s in each], axis=0, weights=[w for w, _ in each]))
        for name, each in found.items()
    }
    return [
        each or by_name.get(name) or _by_rates(name, here, there)
        for each, name in zip(known, calls.name, strict=True)
    ]


def costs_of(trace: Trace, calls: Calls) -> list[Cost | None]:
    """Return what each call launched computes; None where the trace does not tell."""
    costs = _Costs(trace)
    return [costs.of(int(row)) if row >= 0 else None for row in calls.row]


def _scale(cost: Cost, here: Device, there: Device) -> Scale:
    """Return the ratio of two prices; ranges are half the model's, which errs alike on both."""
    one, other = price(cost, here), price(cost, there)
    # The square root is half of a range in logarithms.
    value = other.seconds / one.seconds
    return Scale(
        value, value * sqrt(other.low / other.seconds), value * sqrt(other.high / other.seconds)
    )


def _by_rates(name: str, here: Device, there: Device) -> Scale:
    if is_gemm_name(name):
        value = flops_of(here, "bf16").achieved / flops_of(there, "bf16").achieved
    else:
        value = here.memory_rate / there.memory_rate
    return Scale(value, value / 1.5, value * 1.5)


class _Costs:
    """Reads costs of kernels from the operators around their launches."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._known: dict[tuple[int, int], Cost | None] = {}

    def of(self, row: int) -> Cost | None:
        """Return what a GPU event computes; None where the trace does not tell."""
        trace, columns = self.trace, self.trace.columns
        launch = int(trace.launch[row])
        if launch < 0 or columns.kind[row] != EventKind.KERNEL:
            return None
        for around in trace.ancestors(launch):
            if columns.kind[around] == EventKind.OP and columns.detail[around] >= 0:
                key = int(columns.name[around]), int(columns.detail[around])
                if key not in self._known:
                    detail = trace.detail_of(around)
                    self._known[key] = cost_of(trace.name_of(around), detail)
                return self._known[key]
        return None


def cost_of(op: str, detail: dict[str, Any]) -> Cost | None:
    """Return what an operator computes on inputs of these shapes and types.

    >>> cost_of(
    ...     "aten::mm", {"Input Dims": [[8, 4], [4, 2]], "Input type": ["float", "float"]}
    ... ).shape
    (8, 2, 4)
    """
    inputs = tensors_of(detail)
    shapes = [each.shape for each in inputs]
    floats = [name for each in inputs if (name := dtype_name(each.dtype)) in _FLOATS]
    dtype = floats[0] if floats else "fp32"
    if op in _PRODUCTS:
        return _product(shapes[_PRODUCTS[op] :], dtype)
    if op in _BATCHED:
        return _batched(shapes[_BATCHED[op] :], dtype)
    if "attention" in op:
        return _attention(op, shapes, dtype)
    if op in _ROWS and shapes and len(shapes[0]) > 0:
        rows = prod(shapes[0][:-1])
        return Cost(_ROWS[op], (rows, shapes[0][-1]), dtype) if rows else None
    return _moved(op, [each.nbytes for each in inputs], dtype)


def _product(shapes: Sequence[Shape], dtype: str) -> Cost | None:
    if len(shapes) < 2 or [len(each) for each in shapes[:2]] != [2, 2]:
        return None
    (m, k), (_, n) = shapes[:2]
    return Cost("gemm", (m, n, k), dtype) if m * n * k else None


def _batched(shapes: Sequence[Shape], dtype: str) -> Cost | None:
    if len(shapes) < 2 or [len(each) for each in shapes[:2]] != [3, 3]:
        return None
    (batch, m, k), (_, _, n) = shapes[:2]
    return Cost("bmm", (batch, m, n, k), dtype) if batch * m * n * k else None


def _attention(op: str, shapes: Sequence[Shape], dtype: str) -> Cost | None:
    """Flash attention has the sequence before the heads; others the heads first."""
    four = [each for each in shapes if len(each) == 4]
    if len(four) < 2:
        return None
    backward = "backward" in op
    query, key = four[1:3] if backward and len(four) > 2 else four[:2]
    heads, length = (2, 1) if "flash" in op or "efficient" in op else (1, 2)
    if "scaled_dot_product" in op:
        heads, length = 1, 2
    family = "attention-backward" if backward else "attention"
    sides = (query[0], query[heads], key[heads], query[length], key[length], query[3])
    return Cost(family, sides, dtype) if prod(sides) else None


def _moved(op: str, sizes: Sequence[int], dtype: str) -> Cost | None:
    """Price by the bytes of all inputs and of an output as large as the largest of them."""
    if not sizes:  # recorded without shapes
        return None
    total = bytes_moved(op, sizes, sizes[0] if op in _OVERWRITES else max(sizes))
    return Cost("elementwise", (total,), dtype, nbytes=total) if total else None


def bytes_moved(op: str, sizes: Sequence[int], written: int) -> int:
    """Return the bytes that an operator reads and writes, from those of its inputs and results.

    >>> bytes_moved("aten::add", [8, 8], 8), bytes_moved("aten::copy_", [8, 8], 8)
    (24, 16)
    """
    if op in _PICKS:
        return 2 * written + sum(sizes[1:])
    return sum(sizes[op in _OVERWRITES :]) + written
