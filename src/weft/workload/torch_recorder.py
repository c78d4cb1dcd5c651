"""Ops of torch written down as they are dispatched, with what they wait for and what they hold."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedOperatorException,
)
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.schedule.ir import Cost
from weft.workload.step import Collective, Op, Phase, Unsupported
from weft.workload.torch_collectives import Groups
from weft.workload.torch_costs import UNKNOWN, cost_of, nbytes_of, op_name, tensors_in
from weft.workload.torch_memory import Held

_QUIET = ("prim", "profiler", "prims", "debugprims")
# Ops that only name bytes anew, though their schemas do not say so, or that only ask for memory.
_FREE = frozenset(
    (
        *("_unsafe_view", "_reshape_alias", "lift_fresh", "detach_", "set_", "resize_", "alias"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "wait_tensor"),
        *("empty_permuted", "_local_scalar_dense", "record_stream", "is_same_size", "sym_size"),
        *("requires_grad_", "_version", "is_pinned", "_has_compatible_shallow_copy_type"),
    )
)
# The number of an op (-1: it does nothing of its own), its function, arguments and results.
Seen = Callable[[int, Any, Any, Any, Any], None]
_SUBCLASSES = ("DTensor", "AsyncCollectiveTensor")  # they call ops on their parts, which we see


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Writes down what is dispatched while ``recording``, and always what memory is held."""

    def __init__(self, groups: Groups, seen: Seen | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.groups = groups
        self._seen = seen
        self.recording = False
        self._aside = False
        self.ops: list[Op] = []
        self.phase: Phase = "forward"
        self.memory = Held()
        self.memory.on_free = self._forget
        self._unknown: dict[str, Unsupported] = {}
        self._writer: dict[int, int] = {}  # the last op that wrote a storage
        self._readers: dict[int, dict[str, int]] = defaultdict(dict)  # and those that read since
        self._gathers = _Gathers()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and to say so costs as much as an op

    @property
    def unsupported(self) -> tuple[Unsupported, ...]:
        """What no model knows, with how often it came and what it moved."""
        return tuple(self._unknown.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry an op out on fake tensors and write it down."""
        if self._aside or func.namespace in _QUIET:
            return func(*args, **(kwargs or {}))
        if any(kind.__name__ in _SUBCLASSES for kind in types):
            return self._on_shards(func, args, kwargs or {})
        kwargs = kwargs or {}
        outputs, why = _carried_out(func, args, kwargs)
        results = tensors_in([outputs])
        self.memory.hold(results, self.phase_now)
        if self.recording:
            before = len(self.ops)
            self._record(func, (*args, *kwargs.values()), outputs, results, why)
            if self._seen is not None:
                number = before if len(self.ops) > before else -1
                self._seen(number, func, args, kwargs, outputs)
        return outputs

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Look away: neither ops nor memory of what is inside belong to the step."""
        before, self._aside = self._aside, True
        try:
            yield
        finally:
            self._aside = before

    def _forget(self, storage: int) -> None:
        self._writer.pop(storage, None)
        self._readers.pop(storage, None)

    def start_over(self) -> None:
        """Forget the ops so far and what they wrote: a step begins when all before it is done."""
        self.ops.clear()
        self._writer.clear()
        self._readers.clear()
        self._unknown.clear()
        self._gathers = _Gathers()

    def _on_shards(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Let subclasses call ops on their parts; lists of shards that change in place go straight.

        An optimizer asks for a dozen ops on the shards of all parameters, each element by itself:
        to work out how their results are spread takes longer than the step.
        """
        name = op_name(func)
        lists = name.startswith(("_foreach_", "_fused_")) and name.endswith("_")
        if not lists or any(isinstance(value, DTensor) for value in (*args, *kwargs.values())):
            return NotImplemented
        own = [_shards_of(value) for value in args]
        named = {key: _shards_of(value) for key, value in kwargs.items()}
        return self.__torch_dispatch__(func, (), own, named)

    @property
    def phase_now(self) -> Phase:
        """Say where we are: autograd tells when it works."""
        backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - the only sign of it
        return "backward" if backward and self.phase == "forward" else self.phase

    def _record(
        self, func: Any, args: Sequence[Any], outputs: Any, results: list[torch.Tensor], why: str
    ) -> None:
        inputs = tensors_in(args)
        what = self.groups.collective(func, args, outputs)
        if what is None and why == "" and is_free(func):
            return
        if self._is_bookkeeping(func, inputs) or self._is_handed_on(func, args):
            return
        if what is not None:
            op = self._communication(func, what)
        else:
            op = self._computation(func, args, inputs, results, why)
        self._gathers.see(op, op_name(func), len(self.ops), self.phase_now)
        op = replace(op, stream=self._gathers.stream or op.stream)
        self._append(op, func, inputs, results)

    def _is_bookkeeping(self, func: Any, inputs: list[torch.Tensor]) -> bool:
        """Recognise what only a first step does, and counters, which live on the host."""
        name = op_name(func)
        if self.phase == "optimizer":
            return name == "zeros_like" or all(not tensor.dim() for tensor in inputs)
        return name == "_local_scalar_dense" and _is_constant(inputs)

    def _is_handed_on(self, func: Any, args: Sequence[Any]) -> bool:
        """Recognise a sparse gradient that autograd copies only because somebody holds it here."""
        copied = op_name(func) == "clone" and isinstance(args[0], torch.Tensor)
        return copied and args[0].is_sparse and self.phase_now == "backward"

    def _communication(self, func: Any, what: Collective) -> Op:
        name = f"{func.namespace}.{op_name(func)}"
        return Op(name, "collective", f"comm {what.group}", collective=what, phase=self.phase_now)

    def _computation(
        self,
        func: Any,
        args: Sequence[Any],
        inputs: list[torch.Tensor],
        results: list[torch.Tensor],
        why: str,
    ) -> Op:
        name = f"{func.namespace}.{op_name(func)}"
        if op_name(func) == "_local_scalar_dense":
            self._note(name, nbytes_of(inputs), why)
            cost = Cost("copy", (), "", 0.0, nbytes_of(inputs))
            return Op(name, "copy", cost=cost, blocking=True, phase=self.phase_now)
        cost = cost_of(func, args, inputs, results)
        if why or cost.family == UNKNOWN:
            self._note(name, cost.nbytes, why or "no model knows it")
        return Op(name, cost=cost, blocking="shape" in why, phase=self.phase_now)

    def _note(self, name: str, nbytes: int, why: str) -> None:
        known = self._unknown.get(name, Unsupported(name, 0, 0, why))
        self._unknown[name] = Unsupported(name, known.count + 1, known.nbytes + nbytes, why)

    def _append(self, op: Op, func: Any, inputs: list[torch.Tensor], results: Any) -> None:
        """Add an op with the ends that it waits for: of what it reads, and overwrites."""
        number, needs = len(self.ops), set(self._gathers.needs)
        written = {_storage(tensor) for tensor in results}
        if op.kind == "collective" or func._schema.is_mutable:  # noqa: SLF001
            written |= {_storage(tensor) for tensor in inputs if _may_write(func)}
        for storage in {_storage(tensor) for tensor in inputs} | written:
            if (earlier := self._writer.get(storage)) is not None:
                needs.add(earlier)
        for storage in written:
            needs.update(self._readers.pop(storage, {}).values())
            self._writer[storage] = number
        for tensor in inputs:
            self._readers[_storage(tensor)][op.stream] = number
        after = tuple(sorted(n for n in needs if self.ops[n].stream != op.stream))
        self.ops.append(replace(op, after=after))


class _Gathers:
    """The streams of FSDP2, which a CPU does not have: what they make gathers wait for.

    A gather is copied in on a stream of its own. In the forward pass the next one may begin when
    the last but one has been copied out, in the backward pass when the last one has: no more than
    two buffers are held (torch.distributed.fsdp, FSDPParamGroup.wait_for_unshard).
    """

    def __init__(self) -> None:
        self._copied_out: list[int] = []
        self.needs: tuple[int, ...] = ()
        self.stream: str | None = None

    def see(self, op: Op, name: str, number: int, phase: Phase) -> None:
        """Look at an op about to be added: what it needs besides data, and where it runs."""
        self.needs, self.stream = (), None
        if name == "all_gather_copy_in":
            self.stream = "copy in"
            back = 2 if phase == "forward" else 1
            self.needs = (
                tuple(self._copied_out[-back:][:1]) if len(self._copied_out) >= back else ()
            )
        elif name == "split_with_sizes_copy" and op.name.startswith("fsdp"):
            self._copied_out.append(number)


@lru_cache(maxsize=4096)
def is_free(func: Any) -> bool:
    """Tell whether an op starts no kernel: it only names bytes anew, or asks for memory."""
    if op_name(func) in _FREE:
        return True
    returns = [each.alias_info for each in func._schema.returns]  # noqa: SLF001
    return bool(returns) and all(info is not None and not info.is_write for info in returns)


@lru_cache(maxsize=4096)
def _may_write(func: Any) -> bool:
    arguments = func._schema.arguments  # noqa: SLF001
    return any(each.alias_info is not None and each.alias_info.is_write for each in arguments)


def _shards_of(value: Any) -> Any:
    """Give the shards of a list of distributed tensors; anything else as it is."""
    if not isinstance(value, (list, tuple)):
        return value
    return [each._local_tensor if isinstance(each, DTensor) else each for each in value]  # noqa: SLF001


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001


def _is_constant(inputs: list[torch.Tensor]) -> bool:
    return all(getattr(tensor, "constant", None) is not None for tensor in inputs)


def _carried_out(func: Any, args: Any, kwargs: Any) -> tuple[Any, str]:
    """Carry an op out; where its result depends on data, take the largest that it can be."""
    try:
        return func(*args, **kwargs), ""
    except DataDependentOutputException:
        if op_name(func) == "_local_scalar_dense":
            return _one(args[0]), "its value decides what follows; taken as 1"
        raise
    except DynamicOutputShapeException:
        largest = _LARGEST.get(op_name(func))
        if largest is None:
            raise
        return largest(*args, **kwargs), "its shape depends on data; taken as the largest"
    except UnsupportedOperatorException:
        return _like_first(args), "torch cannot carry it out on fake tensors"


def _one(tensor: torch.Tensor) -> float | int | bool:
    if tensor.dtype == torch.bool:
        return True
    return 1.0 if tensor.dtype.is_floating_point else 1


def _nonzero(tensor: torch.Tensor, **_more: Any) -> torch.Tensor:
    return tensor.new_empty((tensor.numel(), tensor.dim()), dtype=torch.int64)


def _flat(tensor: torch.Tensor, *_rest: Any, **_more: Any) -> torch.Tensor:
    return tensor.new_empty((tensor.numel(),))


def _unique(tensor: torch.Tensor, *_rest: Any, **_more: Any) -> tuple[torch.Tensor, ...]:
    counts = tensor.new_empty((tensor.numel(),), dtype=torch.int64)
    return _flat(tensor), tensor.new_empty(tensor.shape, dtype=torch.int64), counts


def _masked(tensor: torch.Tensor, indices: Any, **_more: Any) -> torch.Tensor:
    """Take every element that a mask could pick."""
    masks = [each for each in indices if each is not None]
    picked = max(each.numel() for each in masks)
    rest = tensor.shape[sum(each.dim() if each.dtype == torch.bool else 1 for each in masks) :]
    return tensor.new_empty((picked, *rest))


def _same(tensor: torch.Tensor, *_rest: Any, **_more: Any) -> torch.Tensor:
    return tensor


_LARGEST: dict[str, Callable[..., Any]] = {
    "index": _masked,
    "index_put_": _same,
    "_index_put_impl_": _same,
    "nonzero": _nonzero,
    "masked_select": _flat,
    "_unique2": _unique,
    "unique_dim": _unique,
    "unique_consecutive": _unique,
}


def _like_first(args: Any) -> Any:
    found = [value for value in args if isinstance(value, FakeTensor)]
    if not found:
        raise AssertionError("an op that cannot be carried out has no tensor to take the shape of")
    return torch.empty_like(found[0])
