"""The input tensors of an operator, as far as its recorded arguments tell.

Arguments come from untrusted files: an invalid dimension, or a tensor larger than any memory, is
treated as missing.
"""

from dataclasses import dataclass
from math import prod
from typing import Any

from weft.trace.trace import MOST, whole_number

_DTYPES = {
    **dict.fromkeys(("double", "float64", "long", "int64", "longint", "complexfloat"), 8),
    **dict.fromkeys(("float", "float32", "int", "int32"), 4),
    **dict.fromkeys(("half", "float16", "bfloat16", "short", "int16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "int8", "uint8", "unsignedchar", "signedchar"), 1),
    **dict.fromkeys(("float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz"), 1),
    "complexdouble": 16,
}
_DEEPEST = 4  # PyTorch nests lists of tensors once; deeper lists are not shapes
_SHORT = {"double": "fp64", "float": "fp32", "half": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True, slots=True)
class Tensor:
    """One input: its shape (empty for a scalar) and its type as PyTorch writes it."""

    shape: tuple[int, ...]
    dtype: str = ""

    @property
    def nbytes(self) -> int:
        """Its size in bytes; 0 if it is not a tensor, or its type has no size."""
        return (prod(self.shape) if self.shape else 0) * (dtype_bytes(self.dtype) or 0)


def tensors_of(arguments: dict[str, Any]) -> list[Tensor]:
    """Return the inputs of an operator, in order."""
    shapes, types = (list_of(arguments.get(key)) for key in ("Input Dims", "Input type"))
    names = [*map(str, types), *[""] * (len(shapes) - len(types))]
    return [Tensor(_shape(shape), name) for shape, name in zip(shapes, names, strict=False)]


def dtype_bytes(dtype: str) -> int | None:
    """Return the bytes per element of a type as PyTorch writes it.

    >>> dtype_bytes("c10::BFloat16"), dtype_bytes("Float"), dtype_bytes("TensorList")
    (2, 4, None)
    """
    return _DTYPES.get(_plain(dtype))


def dtype_name(dtype: str) -> str:
    """Return weft's name of a type.

    >>> dtype_name("c10::BFloat16"), dtype_name("Float"), dtype_name("Int")
    ('bf16', 'fp32', 'int')
    """
    return _SHORT.get(_plain(dtype), _plain(dtype))


def _plain(dtype: str) -> str:
    return dtype.rpartition("::")[2].lower().replace("_", "").replace(" ", "")


def list_of(value: Any) -> list[Any]:
    """Return a value of a file if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def _shape(value: Any, depth: int = 0) -> tuple[int, ...]:
    """Return the shape of one input; a list of tensors counts as one flat tensor.

    >>> _shape([2, 3]), _shape([[2, 3], [4]]), _shape([2, "x"]), _shape([10**99])
    ((2, 3), (10,), (), ())
    """
    sides = list_of(value)
    if sides and isinstance(sides[0], list):
        if depth >= _DEEPEST:
            return ()
        parts = [_shape(each, depth + 1) for each in sides if isinstance(each, list)]
        sides = [sum(prod(each) for each in parts if each)]
    known = tuple(side for side in map(whole_number, sides) if side is not None)
    return known if len(known) == len(sides) and prod(known) <= MOST else ()
