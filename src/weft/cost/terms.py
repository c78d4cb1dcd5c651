"""Seconds of torch ops on cores that were measured: each a sum of counts times what one takes.

A core carries an op out by itself, so there are no tiles to wait for and no units to fill: a
product takes its multiplications, plus passes over both operands (they are packed) and over the
result; everything else takes what it moves. ``call`` is paid once.
"""

from collections.abc import Callable

import numpy as np

from weft.cost.attention import visible_keys
from weft.cost.matmul import Columns, Floats
from weft.hardware.measured import OpCostModel

Terms = Callable[[Columns], dict[str, Floats]]


def _product(columns: Columns) -> dict[str, Floats]:
    batch, m, n, k = (columns[key] for key in ("batch", "m", "n", "k"))
    return {
        "call": np.ones_like(m),
        "each": batch,
        "flop": 2.0 * batch * m * n * k,
        "first": batch * m * k,
        "second": batch * k * n,
        "result": batch * m * n,
    }


def _attention(columns: Columns) -> dict[str, Floats]:
    seen, _ = visible_keys(columns)
    heads = columns["batch"] * columns["heads"]
    scores = heads * columns["queries"] * seen
    return {
        "call": np.ones_like(seen),
        "head": heads,
        "flop": 4.0 * scores * columns["head_dim"],
        "score": scores,
        "element": heads * columns["queries"] * columns["head_dim"],
    }


def _rows(columns: Columns) -> dict[str, Floats]:
    rows = columns["rows"]
    return {"call": np.ones_like(rows), "row": rows, "element": rows * columns["width"]}


def _moved(columns: Columns) -> dict[str, Floats]:
    nbytes = columns["nbytes"]
    return {"call": np.ones_like(nbytes), "byte": nbytes}


TERMS: dict[str, Terms] = {
    "gemm": _product,
    "bmm": _product,
    "attention": _attention,
    "attention-backward": _attention,
    **dict.fromkeys(("softmax", "softmax-backward", "norm", "norm-backward"), _rows),
    **dict.fromkeys(("elementwise", "reduction", "copy", "concat", "optimizer"), _moved),
}


def op_seconds(model: OpCostModel, columns: Columns) -> Floats:
    """Price ops of one family by what was measured of it."""
    counts = TERMS[model.family](columns)
    total = np.zeros_like(counts["call"])
    for name, each in model.terms.items():
        total = total + each * counts[name]
    return total
