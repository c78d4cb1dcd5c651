"""Reduce operations of torch.distributed by weft's names."""

from typing import Any, NamedTuple

from torch import Tensor
from torch.distributed import ReduceOp

from weft.errors import UsageError

_NAMES = {
    ReduceOp.SUM: "sum",
    ReduceOp.AVG: "avg",
    ReduceOp.MIN: "min",
    ReduceOp.MAX: "max",
    ReduceOp.PRODUCT: "prod",
    ReduceOp.BAND: "band",
    ReduceOp.BOR: "bor",
    ReduceOp.BXOR: "bxor",
    ReduceOp.PREMUL_SUM: "premul",
}


class Reduction(NamedTuple):
    """An operation, and the factor of a premultiplied sum."""

    name: str
    factor: float | Tensor | None = None


def reduction_of(op: Any) -> Reduction:
    """Read the operation out of a collective's options."""
    kind = op.op
    name = _NAMES.get(kind)
    if name is None:
        raise UsageError(f"weft knows no reduce operation {kind}.")
    return Reduction(name, op.factor if name == "premul" else None)
