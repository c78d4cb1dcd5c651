"""Known values of fake tensors: one number for all elements of a storage, but for single ones.

A value that a step reads decides which branch it takes. Most are taken as 1, but no job trains
on a branch for gradients that are not a number: results of ``isnan`` and ``isinf`` are False,
and what is computed from them follows. Tensors that are filled with one number keep it, so that
flags such as the "finished" of a generation loop are right until data decides.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from weft.torch.capture.byte_dependencies import storage_of

Number = bool | int | float
Rule = Callable[[Sequence[Any], list[Number | None]], Number | None]


class KnownValues:
    """Numbers that fill whole storages, as far as they are known."""

    def __init__(self) -> None:
        self._known: dict[int, Number] = {}
        self._others: dict[int, dict[int, Number]] = {}  # single elements that differ, by byte

    def forget(self, storage: int) -> None:
        """Drop a storage that was freed."""
        self._known.pop(storage, None)
        self._others.pop(storage, None)

    def get(self, tensor: torch.Tensor) -> Number | None:
        """Return the value of all elements of a tensor; None if it is not known."""
        storage = storage_of(tensor)
        value, others = self._known.get(storage), self._others.get(storage)
        if not others:
            return value
        return others.get(_first_byte(tensor), value) if tensor.numel() == 1 else None

    def _of(self, value: Any) -> Number | None:
        strided = isinstance(value, torch.Tensor) and value.layout == torch.strided
        return self.get(value) if strided else None

    def follow(
        self, name: str, args: Sequence[Any], results: list[torch.Tensor], changed: Sequence[Any]
    ) -> None:
        """Compute the known values of an op's results."""
        rule = _RULES.get(name)
        if not changed and (rule is None or not (self._known or name in _SOURCES)):
            return
        value = None
        if rule is not None:
            given = [self._of(each) for each in args]
            value = rule(args, given)
        if self._changed_in_part(name, args, value, changed):
            return
        for tensor in changed:
            self.forget(storage_of(tensor))
        whole = [each for each in changed if _is_whole(each)]
        if value is not None and math.isfinite(value):
            for tensor in (*results[:1], *whole):  # results after the first are indices
                if _is_whole(tensor):
                    self._known[storage_of(tensor)] = _as(value, tensor.dtype)

    def _changed_in_part(
        self, name: str, args: Sequence[Any], value: Number | None, changed: Sequence[Any]
    ) -> bool:
        """Follow an element that is set by itself, and copies of tensors with such elements.

        So DDP marks in a tensor of zeros which parameters a step used.
        """
        if len(changed) != 1:
            return False
        storage, known = storage_of(changed[0]), self._known
        if changed[0].numel() == 1 and not _is_whole(changed[0]):
            if value is None or not math.isfinite(value) or storage not in known:
                return False
            others = self._others.setdefault(storage, {})
            others[_first_byte(changed[0])] = _as(value, changed[0].dtype)
            return True
        given = storage_of(args[1]) if name == "copy_" and self._of_parts(args[1]) else storage
        if given == storage or not (_is_whole(args[1]) and _is_whole(changed[0])):
            return False
        known[storage], self._others[storage] = known[given], dict(self._others[given])
        return bool(args[1].dtype == changed[0].dtype)

    def _of_parts(self, value: Any) -> bool:
        strided = isinstance(value, torch.Tensor) and value.layout == torch.strided
        return strided and storage_of(value) in self._others

    def learn(self, tensor: torch.Tensor, value: Number) -> None:
        """Record a known value."""
        self.forget(storage_of(tensor))
        self._known[storage_of(tensor)] = value


def _first_byte(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()


def _is_whole(tensor: torch.Tensor) -> bool:
    return tensor.numel() * tensor.element_size() == tensor.untyped_storage().nbytes()


def _as(value: Number, dtype: torch.dtype) -> Number:
    if dtype == torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else int(value)


def _constant(value: Number) -> Rule:
    return lambda _args, _given: value


def _number(args: Sequence[Any], given: list[Number | None], place: int) -> Number | None:
    """Return an operand that is a number or a tensor of a known value."""
    if place >= len(args):
        return None
    return args[place] if isinstance(args[place], (bool, int, float)) else given[place]


def _random(args: Sequence[Any], _given: list[Number | None]) -> Number | None:
    """Return 1 for a random number, or the nearest value in its bounds."""
    bounds = [each for each in args if isinstance(each, int)]
    if not bounds:
        return None
    low = bounds[0] if len(bounds) > 1 else 0
    return max(low, min(1, bounds[-1] - 1))


def _same(args: Sequence[Any], given: list[Number | None]) -> Number | None:
    if args and isinstance(args[0], (list, tuple)):
        return None
    return given[0] if given else None


def _filled(args: Sequence[Any], given: list[Number | None]) -> Number | None:
    return _number(args, given, 1)


def _copied(_args: Sequence[Any], given: list[Number | None]) -> Number | None:
    return given[1] if len(given) > 1 else None


def _either(args: Sequence[Any], given: list[Number | None]) -> Number | None:
    both = [_number(args, given, place) for place in (0, 1)]
    if any(value for value in both):
        return True
    return None if None in both else False


def _both(args: Sequence[Any], given: list[Number | None]) -> Number | None:
    both = [_number(args, given, place) for place in (0, 1)]
    if any(value is not None and not value for value in both):
        return False
    return None if None in both else True


def _negated(_args: Sequence[Any], given: list[Number | None]) -> Number | None:
    return None if given[0] is None else not given[0]


def _summed(args: Sequence[Any], given: list[Number | None]) -> Number | None:
    """Return the sum of all elements, or of zeros."""
    if given[0] is None or (len(args) > 1 and given[0]):
        return None
    return given[0] * int(args[0].numel())


def _product(args: Sequence[Any], given: list[Number | None]) -> Number | None:
    both = [_number(args, given, place) for place in (0, 1)]
    if any(value is not None and not value for value in both):
        return 0
    return None if both[0] is None or both[1] is None else both[0] * both[1]


def _total(args: Sequence[Any], given: list[Number | None]) -> Number | None:
    first, second = (_number(args, given, place) for place in (0, 1))
    return None if first is None or second is None else first + second


def _compared(compare: Callable[[Any, Any], bool], same: bool) -> Rule:  # noqa: FBT001
    def rule(args: Sequence[Any], given: list[Number | None]) -> Number | None:
        if args[0] is args[1]:  # x != x is how isnan is written by hand
            return same
        if given[0] is None and isinstance(args[1], float) and math.isinf(args[1]):
            return bool(compare(0.0, args[1]))  # values are finite
        first, second = (_number(args, given, place) for place in (0, 1))
        return None if first is None or second is None else bool(compare(first, second))

    return rule


_OR = ("logical_or", "bitwise_or", "__or__", "logical_or_", "bitwise_or_", "__ior__")
_AND = ("logical_and", "bitwise_and", "__and__", "logical_and_", "bitwise_and_", "__iand__")
_NOT = ("logical_not", "bitwise_not", "logical_not_", "bitwise_not_")
_SAME = (
    *("any", "all", "amax", "amin", "max", "min", "mean", "clone", "_to_copy", "index"),
    *("_is_any_true", "_is_all_true", "index_select", "gather", "wait_tensor"),
    # Collectives of a flag: other ranks are taken to have the same.
    *("all_reduce", "all_reduce_", "broadcast", "broadcast_"),
)
_RULES: dict[str, Rule] = {
    **dict.fromkeys(("isnan", "isinf", "isin", "isposinf", "isneginf"), _constant(value=False)),
    **dict.fromkeys(("zeros", "new_zeros", "zeros_like", "zero_"), _constant(value=0)),
    **dict.fromkeys(("ones", "new_ones", "ones_like"), _constant(value=1)),
    "randint": _random,
    "full": _filled,
    "fill_": _filled,
    "full_like": _filled,
    "new_full": lambda args, given: _number(args, given, 2),
    "copy_": _copied,
    **dict.fromkeys(_OR, _either),
    **dict.fromkeys(_AND, _both),
    **dict.fromkeys(_NOT, _negated),
    **dict.fromkeys(_SAME, _same),
    **dict.fromkeys(("mul", "mul_"), _product),
    **dict.fromkeys(("add", "add_"), _total),
    "sum": _summed,
    "count_nonzero": _summed,
    "eq": _compared(operator.eq, same=True),
    "ne": _compared(operator.ne, same=False),
    "gt": _compared(operator.gt, same=False),
    "ge": _compared(operator.ge, same=True),
    "lt": _compared(operator.lt, same=False),
    "le": _compared(operator.le, same=True),
}
# Ops whose result is known whatever they are given.
_SOURCES = frozenset(
    (
        *("isnan", "isinf", "isin", "isposinf", "isneginf", "zeros", "new_zeros", "zeros_like"),
        *("zero_", "ones", "new_ones", "ones_like", "full", "fill_", "full_like", "new_full"),
        *("eq", "ne", "randint"),
    )
)
