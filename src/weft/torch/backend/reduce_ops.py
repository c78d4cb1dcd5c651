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

# An operation hashes to the number of its kind: asking for that is a third of asking for the
# kind and looking it up, 2 us less a call.
_NUMBERED: dict[int, str] = {kind.value: name for kind, name in _NAMES.items()}
_PLAIN = [kind for kind, name in _NAMES.items() if name != "premul"]  # which takes a factor
_IS_NUMBERED = all(hash(ReduceOp(kind)) == kind.value for kind in _PLAIN)


def reduce_op_name(op: Any) -> str:
    """Read the operation out of a collective's options."""
    name = _NUMBERED.get(hash(op)) if _IS_NUMBERED else _NAMES.get(op.op)
    if name is None:
        raise UsageError(f"weft knows no reduce operation {op.op}.")
    return name if name != "premul" else f"premul:{float(op.factor)!r}"
