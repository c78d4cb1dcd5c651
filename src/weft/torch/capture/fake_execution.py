"""Run an op on fake tensors, and state what is assumed where its result depends on data.

Fake tensors have shapes and no values. An op whose result has as many rows as its data ask for gets
the largest shape, and a value that a step reads is taken as 1 unless more is known of it
(known_values.py). The real step waits there: the host has to see the data.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)

from weft.errors import CaptureError
from weft.torch.capture.captured_collectives import fake_result
from weft.torch.capture.op_costs import op_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.torch.capture.known_values import KnownValues, Number

# A loop that asks for the value of a tensor this often is taken to end only by its data. The
# longest loops of ordinary steps are micro-batches, a few hundred at most.
MOST_READS = 4096


class Assumption(NamedTuple):
    """Why the result of an op is not what a device computes; empty where it is."""

    why: str = ""
    host_waits: bool = False  # for data that decide the shape or the branch


NONE = Assumption()
_LARGEST_SHAPE = Assumption("its shape depends on data; taken as the largest", host_waits=True)
_NOT_FAKED = Assumption("torch cannot carry it out on fake tensors")


class FakeExecution:
    """Runs ops on fake tensors; counts how often each line reads a value."""

    def __init__(self, values: KnownValues) -> None:
        self._values = values
        self._reads: Counter[tuple[int, int]] = Counter()  # of values, by the line that asks

    def run(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Assumption]:
        """Run an op; if the shape of its result depends on data, return the largest one."""
        if (result := _instead(func, args, kwargs)) is not None:
            return result, NONE
        try:
            return func(*args, **kwargs), NONE
        except DataDependentOutputException:
            if op_name(func) not in ("_local_scalar_dense", "equal", "allclose"):
                raise
            return self._value(op_name(func), args[0])
        except DynamicOutputShapeException:
            largest = _LARGEST.get(op_name(func))
            if largest is None:
                raise
            return largest(*args, **kwargs), _LARGEST_SHAPE
        except UnsupportedOperatorException:
            if func.namespace == "c10d":  # coalesced collectives have no fake kernel
                return fake_result(func, args), NONE
            return _like_first(func, args), _NOT_FAKED

    def _value(self, name: str, tensor: torch.Tensor) -> tuple[Number, Assumption]:
        """Return what a value that is read is taken to be: 1, unless more is known of it."""
        known = self._values.get(tensor) if name == "_local_scalar_dense" else True
        if known is not None:
            return known, _value_taken_as(known)
        self._count_read()
        one = True if tensor.dtype == torch.bool else 1.0 if tensor.is_floating_point() else 1
        return one, _value_taken_as(1)

    def _count_read(self) -> None:
        """Raise where a loop only ends when a tensor has another value than the one assumed.

        Such a loop never leaves its function, so what is counted is the call that it is in.
        """
        frame = sys._getframe(2)  # noqa: SLF001 - the line of the loop is what the user needs
        while frame.f_back is not None and _is_internal(frame.f_code.co_filename):
            frame = frame.f_back
        place = id(frame), frame.f_lasti
        self._reads[place] += 1
        if self._reads[place] > MOST_READS:
            raise CaptureError(
                f"a loop read the value of a tensor {MOST_READS} times and does not end: "
                "fake tensors have no values",
                "Give the loop a fixed number of iterations while the step is captured.",
            )


def _value_taken_as(value: Number) -> Assumption:
    return Assumption(f"its value decides what follows; taken as {value}", host_waits=True)


LOADERS = "/torch/utils/data/"
_INTERNAL = ("/torch/utils/", "/torch/_", "/weft/torch/capture/")


def _is_internal(path: str) -> bool:
    return any(part in path for part in _INTERNAL)


def is_read_by_loader() -> bool:
    """Return whether a value is read by torch.utils.data: its indices are on the host."""
    frame: Any = sys._getframe(1)  # noqa: SLF001 - only the stack tells the reader
    while frame is not None and _is_internal(frame.f_code.co_filename):
        if LOADERS in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False


def _instead(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the result of an op whose fake kernel does otherwise than a GPU; None for others."""
    name = op_name(func)
    if name == "wait_tensor":  # what it is given, not a copy
        return args[0]
    if name == "histc" and not args[0].is_floating_point():  # a CPU refuses integers
        return args[0].new_empty((args[1] if len(args) > 1 else 100,))
    if name == "_grouped_mm" and args[0].dtype in (torch.float32, torch.float16):
        half = [each.to(torch.bfloat16) for each in args[:2]]  # the dtype that it insists on
        return func(*half, *args[2:], **kwargs).to(args[0].dtype)
    return None


def _nonzero(tensor: torch.Tensor, **_more: Any) -> torch.Tensor:
    return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _flat(tensor: torch.Tensor, *_rest: Any, **_more: Any) -> torch.Tensor:
    return tensor.new_empty((tensor.numel(),))


def _unique(tensor: torch.Tensor, *_rest: Any, **_more: Any) -> tuple[torch.Tensor, ...]:
    counts = tensor.new_empty((tensor.numel(),), dtype=torch.int64)
    return _flat(tensor), tensor.new_empty(tensor.shape, dtype=torch.int64), counts


def _masked(tensor: torch.Tensor, indices: Any, **_more: Any) -> torch.Tensor:
    """Return every element that a mask could select."""
    masks = [each for each in indices if each is not None]
    picked = max(each.numel() for each in masks)
    rest = tensor.shape[sum(each.dim() if each.dtype == torch.bool else 1 for each in masks) :]
    return tensor.new_empty((picked, *rest))


def _counts(
    tensor: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0
) -> torch.Tensor:
    """Count as many values as are asked for: larger ones would be a mistake."""
    if not minlength:
        raise CaptureError(
            "bincount: minlength is not given, and fake tensors have no largest value",
            "Pass minlength while the step is captured.",
        )
    dtype = torch.int64 if weights is None else torch.float64
    return tensor.new_empty((minlength,), dtype=dtype)


def _once(repeats: torch.Tensor, **_more: Any) -> torch.Tensor:
    """Repeat every row once: a value that is read is 1."""
    return repeats.new_empty((repeats.numel(),))


def _same(tensor: torch.Tensor, *_rest: Any, **_more: Any) -> torch.Tensor:
    return tensor


_LARGEST: dict[str, Callable[..., Any]] = {
    "index": _masked,
    "index_put_": _same,
    "_index_put_impl_": _same,
    "nonzero": _nonzero,
    "bincount": _counts,
    "repeat_interleave": _once,
    "masked_select": _flat,
    "_unique2": _unique,
    "unique_dim": _unique,
    "unique_consecutive": _unique,
}


def _like_first(func: Any, args: Any) -> Any:
    found = [value for value in args if isinstance(value, FakeTensor)]
    if not found:
        raise CaptureError(
            f"{func}: torch cannot carry it out on fake tensors, and no argument has its shape",
            "Leave it out while the step is captured, or register a fake kernel for it.",
        )
    return torch.empty_like(found[0])
