"""The ops that ``weft calibrate`` times, by family, with shapes of small models.

Each comes with the columns of its family, so that a cost model can be fitted to what it took.
Shapes are random, always the same ones; products come in the three forms of a linear layer.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from weft.calibration.torch_op_calls import OpCall, TensorSpec

_MOST_FLOPS = 4e8  # of one product: ten milliseconds of a slow core
_SHAPES = {"gemm": 24, "bmm": 8, "attention": 8, "rows": 6, "moved": 6}


@dataclass(frozen=True)
class Sample:
    """One op to be timed: the columns of its family, and its call."""

    family: str
    columns: dict[str, float]
    call: OpCall


def samples() -> list[Sample]:
    """Return all ops to be timed."""
    dice = random.Random(0)  # noqa: S311 - the same each time
    return [*_products(dice), *_batched(dice), *_attention(dice), *_rows(dice), *_moved(dice)]


def _plain(*shape: int) -> TensorSpec:
    stride, strides = 1, []
    for size in reversed(shape):
        strides.append(stride)
        stride *= size
    return TensorSpec(shape, tuple(reversed(strides)), "float32")


def _flipped(rows: int, columns: int) -> TensorSpec:
    """Return a transposed matrix, as the weight of a layer is used."""
    return TensorSpec((rows, columns), (1, rows), "float32")


def _between(dice: random.Random, low: float, high: float) -> int:
    return int(2 ** dice.uniform(low, high))


def _products(dice: random.Random) -> Iterator[Sample]:
    made = 0
    while made < _SHAPES["gemm"]:
        m, n, k = (_between(dice, *each) for each in ((6, 11), (4, 11), (4, 11)))
        if 2.0 * m * n * k > _MOST_FLOPS:
            continue
        calls = (
            OpCall("aten::addmm", (_plain(n), _plain(m, k), _flipped(k, n))),
            OpCall("aten::mm", (_plain(m, k), _plain(k, n))),
            OpCall("aten::mm", (_flipped(m, k), _plain(k, n))),
        )
        yield Sample("gemm", {"m": m, "n": n, "k": k, "batch": 1}, calls[made % 3])
        made += 1


def _batched(dice: random.Random) -> Iterator[Sample]:
    for _ in range(_SHAPES["bmm"]):
        batch, n, k = (_between(dice, *each) for each in ((6, 10), (2.5, 5), (4, 7)))
        call = OpCall(
            "aten::bmm", (_plain(batch, n, k), TensorSpec((batch, k, n), (n * k, 1, k), "float32"))
        )
        yield Sample("bmm", {"batch": batch, "m": n, "n": n, "k": k}, call)


def _attention(dice: random.Random) -> Iterator[Sample]:
    for _ in range(_SHAPES["attention"]):
        batch, heads = dice.choice((1, 2, 4)), dice.choice((2, 4, 8))
        seq, dim, causal = dice.choice((64, 128, 256)), dice.choice((32, 64)), dice.random() < 0.6
        # As a layer splits it: sequences, tokens, heads, elements in memory.
        shape, stride = (batch, heads, seq, dim), (seq * heads * dim, dim, heads * dim, 1)
        qkv = (TensorSpec(shape, stride, "float32"),) * 3
        columns = dict(
            zip(_SIDES, (batch, heads, heads, seq, seq, dim, float(causal)), strict=True)
        )
        name = "aten::_scaled_dot_product_flash_attention_for_cpu"
        yield Sample("attention", columns, OpCall(name, (*qkv, 0.0, causal)))
        sums = _plain(batch, heads, seq)
        given = (qkv[0], *qkv, qkv[0], sums, 0.0, causal)
        yield Sample("attention-backward", columns, OpCall(f"{name}_backward", given))


_SIDES = ("batch", "heads", "kv_heads", "queries", "keys", "head_dim", "causal")


def _rows(dice: random.Random) -> Iterator[Sample]:
    for _ in range(_SHAPES["rows"]):
        rows, wide, narrow = (_between(dice, *each) for each in ((6, 10), (10, 13), (6, 9.5)))
        scores, x = _plain(rows, wide), _plain(rows, narrow)
        at = {"rows": float(rows), "width": float(wide)}
        yield Sample("softmax", at, OpCall("aten::_log_softmax", (scores, 1, False)))
        name = "aten::_log_softmax_backward_data"
        kind = OpCall(name, (scores, scores, 1, torch.float32))
        yield Sample("softmax-backward", at, kind)
        at = {"rows": float(rows), "width": float(narrow)}
        weight, mean = _plain(narrow), _plain(rows, 1)
        given: tuple[Any, ...] = (x, (narrow,), weight, weight, 1e-5)
        yield Sample("norm", at, OpCall("aten::native_layer_norm", given))
        given = (x, x, (narrow,), mean, mean, weight, weight, (True, True, True))
        yield Sample("norm-backward", at, OpCall("aten::native_layer_norm_backward", given))


def _moved(dice: random.Random) -> Iterator[Sample]:
    for _ in range(_SHAPES["moved"]):
        rows, width = _between(dice, 5, 10.5), _between(dice, 5, 10.5)
        x, nbytes = _plain(rows, width), 4 * rows * width
        elementwise = (
            (2, OpCall("aten::gelu", (x,))),
            (2, OpCall("aten::relu", (x,))),
            (3, OpCall("aten::add.Tensor", (x, x))),
            (3, OpCall("aten::mul.Tensor", (x, x))),
            (3, OpCall("aten::threshold_backward", (x, x, 0))),
            (4, OpCall("aten::addcdiv_", (x, x, x))),
        )
        for passes, call in elementwise:
            yield Sample("elementwise", {"nbytes": float(passes * nbytes)}, call)
        call = OpCall("aten::sum.dim_IntList", (x, (0,), True))
        yield Sample("reduction", {"nbytes": float(nbytes)}, call)
        yield Sample("copy", {"nbytes": 2.0 * nbytes}, OpCall("aten::clone", (x,)))
        yield Sample("concat", {"nbytes": 4.0 * nbytes}, OpCall("aten::cat", ((x, x), 1)))
