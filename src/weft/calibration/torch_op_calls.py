"""Calls of torch ops as values: the op, and the shapes, strides and contents of its tensors.

A captured step becomes a list of them; each can be carried out by itself, on tensors made anew.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from weft.torch.capture.capture_step import capture
from weft.torch.capture.op_costs import op_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.step import StepGraph


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to be made: ``below`` bounds whole numbers, drawn by Zipf's law of that power.

    ``step`` writes multiples of it instead (borders of bags), ``rows`` are those of a sparse one.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str
    below: int = 1
    zipf: float = 0.0
    step: int = 0
    rows: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of its elements, each counted once; of a sparse one those of its rows."""
        if self.rows:
            sides: Iterable[int] = (self.rows, *self.shape[1:])
        else:
            sides = (s for s, t in zip(self.shape, self.stride, strict=True) if t)
        return math.prod(sides) * int(getattr(torch, self.dtype).itemsize)

    def make(self, rng: np.random.Generator) -> torch.Tensor:
        """Make it, every page touched."""
        dtype = getattr(torch, self.dtype)
        if self.rows:
            return self._sparse(dtype, rng)
        last = sum((s - 1) * t for s, t in zip(self.shape, self.stride, strict=True))
        size = last + 1 if 0 not in self.shape else 0
        return self._filled(size, dtype, rng).as_strided(self.shape, self.stride)

    def _filled(self, size: int, dtype: torch.dtype, rng: np.random.Generator) -> torch.Tensor:
        if dtype.is_floating_point:
            return torch.empty(size, dtype=dtype).uniform_(0.05, 1.0)
        if self.step:
            return torch.arange(0, size * self.step, self.step, dtype=dtype)
        return random_rows(self.below, size, self.zipf, rng).to(dtype)

    def _sparse(self, dtype: torch.dtype, rng: np.random.Generator) -> torch.Tensor:
        where = random_rows(self.shape[0], self.rows, self.zipf, rng).unsqueeze(0)
        values = torch.empty(self.rows, *self.shape[1:], dtype=dtype).uniform_(0.05, 1.0)
        return torch.sparse_coo_tensor(where, values, self.shape, check_invariants=False)


def random_rows(rows: int, count: int, zipf: float, rng: np.random.Generator) -> torch.Tensor:
    """Draw which rows are looked up; popular ones lie anywhere."""
    if not zipf:
        return torch.from_numpy(rng.integers(0, rows, count))
    weights = np.cumsum(1.0 / np.arange(1, rows + 1) ** zipf)
    ranks = np.searchsorted(weights / weights[-1], rng.random(count))
    return torch.from_numpy(rng.permutation(rows)[ranks].astype(np.int64))


@dataclass(frozen=True, slots=True)
class OpCall:
    """One op with its arguments; tensors are ``TensorSpec``s."""

    op: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    @property
    def function(self) -> Any:
        """The op itself."""
        space, _, rest = self.op.partition("::")
        name, _, overload = rest.partition(".")
        return getattr(getattr(getattr(torch.ops, space), name), overload or "default")

    @property
    def tensors(self) -> list[TensorSpec]:
        """The tensors that it is given."""
        return list(_specs((*self.args, *(value for _, value in self.kwargs))))

    def made(self, rng: np.random.Generator) -> tuple[list[Any], dict[str, Any]]:
        """Make its arguments."""
        args = [_made(value, rng) for value in self.args]
        return args, {key: _made(value, rng) for key, value in self.kwargs}


def _specs(values: Iterable[Any]) -> Iterable[TensorSpec]:
    for value in values:
        if isinstance(value, TensorSpec):
            yield value
        elif isinstance(value, tuple):
            yield from _specs(value)


def _made(value: Any, rng: np.random.Generator) -> Any:
    if isinstance(value, TensorSpec):
        return value.make(rng)
    return [_made(each, rng) for each in value] if isinstance(value, tuple) else value


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """An op of a captured step: what is called, and the memory it is given and gives back.

    Memory is told apart by numbers, each with the bytes of it that the op goes through. ``free``
    ops came right before it that only name memory anew: they cost the host as much as others.
    """

    call: OpCall
    given: tuple[tuple[int, int], ...]
    made: tuple[tuple[int, int], ...]
    free: int = 0


class OpCallRecorder:
    """Hears of the ops of a step as it is captured and keeps them by rank and number."""

    def __init__(self, zipfs: Mapping[int, float]) -> None:
        self.found: dict[int, dict[int, RecordedCall]] = {}
        self._zipfs = zipfs  # by rows of a table
        self._free = 0
        self._looked_up: dict[tuple[int, ...], int] = {}  # rows of sparse gradients by their shape

    def see(self, rank: int, number: int, func: Any, args: Any, kwargs: Any, outputs: Any) -> None:
        """Write one op down; a number that was there belongs to the preparation."""
        if number < 0:
            self._free += 1
            return
        name = func.name()
        if op_name(func) == "_embedding_bag_backward":
            self._looked_up[int(args[6]), int(args[0].shape[1])] = int(args[1].numel())
        places = _touched(op_name(func), args, kwargs)
        made = tuple(_storages((outputs,)))
        hint = _HINTS.get(op_name(func), _no_hint)(args)
        like = partial(self._like, hint)
        call = OpCall(
            name,
            tuple(_turned(value, like, index) for index, value in enumerate(args)),
            tuple((key, _turned(value, like, -1)) for key, value in kwargs.items()),
        )
        if func.namespace.startswith("c10d"):  # groups are no values, and it is not called again
            call = OpCall(name, ())
        mine = self.found.setdefault(rank, {})
        mine[number] = RecordedCall(call, places, made, self._free)
        self._free = 0
        for later in [n for n in mine if n > number]:
            del mine[later]

    def _like(self, hint: Mapping[int, TensorSpec], tensor: torch.Tensor, place: int) -> TensorSpec:
        shape, dtype = tuple(map(int, tensor.shape)), str(tensor.dtype).removeprefix("torch.")
        if tensor.layout != torch.strided:
            rows = self._looked_up.get(shape, 1)
            return TensorSpec(shape, (), dtype, 1, self._zipfs.get(shape[0], 0.0), 0, rows)
        stride = tuple(map(int, tensor.stride()))
        if tensor.dtype.is_floating_point or place not in hint:
            return TensorSpec(shape, stride, dtype)
        below, step = hint[place].below, hint[place].step
        zipf = self._zipfs.get(below, 0.0) if hint[place].zipf else 0.0
        return TensorSpec(shape, stride, dtype, below, zipf, step)


def captured_calls(
    step: Callable[[], Any],
    num_ranks: int,
    *,
    name: str,
    zipfs: Mapping[int, float] | None = None,
    every_rank: bool = False,
) -> tuple[StepGraph, dict[int, dict[int, RecordedCall]]]:
    """Capture a step as a CPU carries it out, with the calls of its ops by rank and number."""
    calls = OpCallRecorder(zipfs or {})
    graph = capture(step, num_ranks, name=name, every_rank=every_rank, as_gpu=False, seen=calls.see)
    return graph, calls.found


def _turned(value: Any, like: Any, place: int) -> Any:
    """Write an argument as a value."""
    if isinstance(value, torch.Tensor):
        return like(value, place)
    if isinstance(value, (list, tuple)):
        return tuple(_turned(each, like, place) for each in value)
    return value


def _storages(values: Sequence[Any]) -> Iterable[tuple[int, int]]:
    for value in values:
        if isinstance(value, torch.Tensor) and value.layout == torch.strided:
            nbytes = value.numel() * value.element_size()
            yield int(value.untyped_storage()._cdata), nbytes  # noqa: SLF001
        elif isinstance(value, (list, tuple)):
            yield from _storages(value)


def _touched(name: str, args: Any, kwargs: Any) -> tuple[tuple[int, int], ...]:
    """Return the memory that an op reads; of an embedding table only the looked-up rows."""
    found = list(_storages((*args, *kwargs.values())))
    if name in ("embedding", "_embedding_bag"):
        rows = args[1].numel() * args[0].shape[1] * args[0].element_size()
        found[0] = found[0][0], min(found[0][1], int(rows))
    return tuple(found)


# Whole numbers that an op is given: below what, by which distribution, or multiples of what.
def _no_hint(_args: Any) -> Mapping[int, TensorSpec]:
    return {}


def _numbers(below: int, zipf: float = 0.0, step: int = 0) -> TensorSpec:
    return TensorSpec((), (), "int64", int(below), zipf, int(step))


def _bag(args: Any) -> Mapping[int, TensorSpec]:
    bags = max(1, args[2].numel() - 1)
    return {
        1: _numbers(args[0].shape[0], 1.0),
        2: _numbers(1, step=args[1].numel() // bags),
    }


def _bag_backward(args: Any) -> Mapping[int, TensorSpec]:
    bags = max(1, args[0].shape[0])
    each = args[1].numel() // bags
    return {1: _numbers(args[6], 1.0), 2: _numbers(1, step=each), 3: _numbers(bags)}


_HINTS: dict[str, Any] = {
    "embedding": lambda args: {1: _numbers(args[0].shape[0])},
    "embedding_dense_backward": lambda args: {1: _numbers(args[2])},
    "_embedding_bag": _bag,
    "_embedding_bag_backward": _bag_backward,
    "nll_loss_forward": lambda args: {1: _numbers(args[0].shape[1])},
    "nll_loss_backward": lambda args: {2: _numbers(args[1].shape[1])},
    "index_select": lambda args: {2: _numbers(args[0].shape[args[1]])},
    "index_add": lambda args: {2: _numbers(args[0].shape[args[1]])},
    "gather": lambda args: {2: _numbers(args[0].shape[args[1]])},
}
