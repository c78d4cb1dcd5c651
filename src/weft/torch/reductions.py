"""Reduce operations of torch.distributed by weft's names."""

from typing import Any

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


def reduction_of(op: Any) -> str:
    """Read the operation out of a collective's options."""
    kind = op.op
    name = _NAMES.get(kind)
    if name is None:
        raise UsageError(f"weft knows no reduce operation {kind}.")
    return name if name != "premul" else f"premul:{float(op.factor)!r}"
