"""Record the ops of a torch step as they are dispatched: what they wait for, what they hold.

An op waits for the stream it is issued to (captured_streams.py) and, whatever streams say, for the
last writer of what it reads and the last readers of what it overwrites (byte_dependencies.py). A
collective runs on a stream of its group; a wait for its ``Work`` or its tensor is a wait for its
end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from weft.schedule.ir import Cost
from weft.step.step_graph import Collective, Op, Phase, Unsupported
from weft.torch.capture.byte_dependencies import ByteDependencies, storage_of
from weft.torch.capture.captured_collectives import GroupNames, written_by
from weft.torch.capture.captured_streams import CapturedStreams, Front, merge
from weft.torch.capture.emulated_kernels import FUSED
from weft.torch.capture.fake_execution import Assumption, FakeExecution, is_read_by_loader
from weft.torch.capture.known_values import KnownValues
from weft.torch.capture.op_costs import (
    UNKNOWN,
    changed_by,
    cost_of,
    nbytes_of,
    op_name,
    tensors_in,
)
from weft.torch.capture.peak_memory import HeldMemory

_NO_FUNCTION_MODES: Any = torch._C.DisableTorchFunction  # noqa: SLF001
_QUIET = ("prim", "profiler", "prims", "debugprims")
# Ops that only name bytes anew, though their schemas do not say so, or that only ask for memory.
_FREE = frozenset(
    (
        *("_unsafe_view", "_reshape_alias", "lift_fresh", "detach_", "set_", "resize_", "alias"),
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"),
        *("empty_permuted", "_local_scalar_dense", "record_stream", "is_same_size", "sym_size"),
        *("requires_grad_", "_version", "is_pinned", "_has_compatible_shallow_copy_type"),
        *("_pin_memory", "squeeze_", "unsqueeze_", "transpose_", "t_", "swapaxes_", "swapdims_"),
        *("as_strided_", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk"),
    )
)
# The number of an op (-1: it does nothing of its own), its function, arguments and results.
Seen = Callable[[int, Any, Any, Any, Any], None]
_SUBCLASSES = ("DTensor", "AsyncCollectiveTensor")  # they call ops on their parts, which we see


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records what is dispatched while ``recording``, and always what memory is held."""

    def __init__(
        self, groups: GroupNames, seen: Seen | None = None, *, as_gpu: bool = True
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.groups = groups
        self._as_gpu = as_gpu
        self._seen = seen
        self.recording = False
        self._aside = self._uncounted = False
        self.ops: list[Op] = []
        self.phase: Phase = "forward"
        self.memory = HeldMemory()
        self.memory.on_free = self._forget
        self.streams = CapturedStreams(self.host_waits)
        self.compiled = 0  # functions that torch.compile was asked to compile
        self._unknown: dict[str, Unsupported] = {}
        self._dependencies = ByteDependencies()
        self.batch_from: int | None = None  # the first op of a batch that runs at once
        self._values = KnownValues()
        self.counters: set[int] = set()  # storages of the 0-dim state of optimizers
        self.on_host: set[int] = set()  # storages that stay on the host of a GPU
        self.makes_maps = False  # while DDP makes its maps of used parameters
        self._execution = FakeExecution(self._values)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and asking Dynamo costs as much as an op

    @property
    def unsupported(self) -> tuple[Unsupported, ...]:
        """What no model knows, with how often it came and what it moved."""
        why = "recorded as eager ops; kernels that a compiler fuses are not seen"
        compiled = Unsupported("torch.compile", self.compiled, 0, why)
        return (*self._unknown.values(), *([compiled] if self.compiled else []))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op on fake tensors and record it."""
        kwargs = kwargs or {}
        if func.namespace in _QUIET:
            return func(*args, **kwargs)
        if any(kind.__name__ in _SUBCLASSES for kind in types):
            return self._on_shards(func, args, kwargs)
        # Composite ops have no kernel: a GPU runs their parts, or one fused kernel that we know.
        if is_composite(func):  # seen whole where autograd is off, as in inference mode
            kernel: Any = FUSED.get(func.name().partition("::")[2]) if self._as_gpu else None
            with self:
                return (kernel or func.decompose)(*args, **kwargs)
        outputs, assumed = self._execution.run(func, args, kwargs)
        if self._uncounted:
            return outputs
        with _NO_FUNCTION_MODES():  # AsOnGpu need not see how tensors are looked at
            self._look_at(func, args, kwargs, outputs, assumed)
        return outputs

    def _look_at(
        self, func: Any, args: Any, kwargs: Any, outputs: Any, assumed: Assumption
    ) -> None:
        """Count and record an op that was carried out."""
        results = tensors_in([outputs])
        self.memory.hold(results, self.phase_now)
        changed = tensors_in(changed_by(func, args, kwargs))
        self._values.follow(op_name(func), args, results, changed)
        if self.makes_maps and op_name(func) == "zeros":
            self.on_host |= {storage_of(each) for each in results if each.dtype == torch.int32}
        if op_name(func).startswith("_amp_foreach_non_finite"):
            # The scaler reads it to decide whether the optimizer steps: assume that it does.
            self._values.learn(changed[-1], 0.0)  # no overflow of gradients
        if self.recording and not self._aside:
            before = len(self.ops)
            self._record(func, (*args, *kwargs.values()), outputs, results, changed, assumed)
            if self._seen is not None:
                number = before if len(self.ops) > before else -1
                self._seen(number, func, args, kwargs, outputs)

    @contextlib.contextmanager
    def aside(self, *, memory: bool = False) -> Iterator[None]:
        """Record no ops of what is inside, and no ``memory`` unless that is asked for."""
        before = self._aside, self._uncounted
        self._aside, self._uncounted = True, not memory
        try:
            yield
        finally:
            self._aside, self._uncounted = before

    def _forget(self, storage: int) -> None:
        self._dependencies.forget(storage)
        self._values.forget(storage)
        self.counters.discard(storage)
        self.on_host.discard(storage)

    def start_over(self) -> None:
        """Drop the ops so far and their writes: a step begins when everything before it is done."""
        self.ops.clear()
        self._dependencies.clear()
        self._unknown.clear()
        self.streams.clear()

    def _note(self, name: str, nbytes: int, why: str) -> None:
        """Count something that the prediction does not know the cost of."""
        known = self._unknown.get(name, Unsupported(name, 0, 0, why))
        self._unknown[name] = Unsupported(name, known.count + 1, known.nbytes + nbytes, why)

    def wait(self, front: Front) -> None:
        """Make the current stream wait for ops."""
        merge(self.streams.current.front, front)

    def host_waits(self, name: str, front: Front) -> None:
        """Make the host wait for ops, as ``torch.cuda.synchronize`` does."""
        if self.recording and not self._aside and front:
            after = tuple(sorted(front.values()))
            self.ops.append(Op(name, "host", after=after, phase=self.phase_now))

    def _on_shards(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Dispatch ops of tensor subclasses to their parts; lists of shards are handled here.

        An optimizer asks for a dozen ops on the shards of all parameters, each element by itself:
        to work out how their results are spread takes longer than the step. Lists may hold
        parameters that are distributed and others that are not.
        """
        name = op_name(func)
        in_place = name.endswith("_")
        lists = name.startswith(("_foreach_", "_fused_")) and name != "_foreach_norm"
        if not lists or any(isinstance(value, DTensor) for value in (*args, *kwargs.values())):
            return NotImplemented
        with self:  # a shard may be the result of a pending collective
            own = [_shards_of(value) for value in args]
            named = {key: _shards_of(value) for key, value in kwargs.items()}
        shapes = [_shapes(value) for value in (*own, *named.values()) if _shapes(value)]
        if any(each != shapes[0] for each in shapes):
            return NotImplemented  # a gradient that is sharded otherwise than its parameter
        outputs = self.__torch_dispatch__(func, (), own, named)
        if in_place or not isinstance(outputs, (list, tuple)):
            return outputs
        return [_spread_like(like, each) for like, each in zip(args[0], outputs, strict=True)]

    @property
    def phase_now(self) -> Phase:
        """Return the phase of the step: autograd tells when it works."""
        backward = torch._C._current_graph_task_id() != -1  # noqa: SLF001 - the only sign of it
        return "backward" if backward and self.phase == "forward" else self.phase

    def _record(
        self,
        func: Any,
        values: Sequence[Any],
        outputs: Any,
        results: list[torch.Tensor],
        changed: list[torch.Tensor],
        assumed: Assumption,
    ) -> None:
        inputs = tensors_in(values)
        if op_name(func) == "wait_tensor":
            self.wait(self._dependencies.writers(inputs[0]))
            return
        what = self.groups.collective(func, values, outputs)
        if what is None and not assumed.why and is_free(func):
            return
        if what is not None:
            written = written_by(func, values, results)
            if what.kind not in ("all_reduce", "broadcast", "reduce"):
                for tensor in written:
                    self._values.forget(storage_of(tensor))
            self._append(self._communication(func, values, what), inputs, written)
            return
        if self._is_bookkeeping(func, inputs, results) or self._is_handed_on(func, values):
            return
        op = self._computation(func, values, inputs, results, changed, assumed)
        self._append(op, inputs, [*results, *changed])

    def _is_bookkeeping(
        self, func: Any, inputs: list[torch.Tensor], results: list[torch.Tensor]
    ) -> bool:
        """Recognise counters of optimizers, which live on the host, constants, and DDP's maps."""
        if inputs and all(storage_of(each) in self.on_host for each in inputs):
            return True
        if op_name(func) == "_local_scalar_dense" and is_read_by_loader():
            return True
        if self.phase != "optimizer":
            return op_name(func) == "_local_scalar_dense" and all(map(_is_constant, inputs))
        on_host = all(storage_of(each) in self.counters or _is_constant(each) for each in inputs)
        return on_host and all(not each.dim() for each in (*inputs, *results))

    def _is_handed_on(self, func: Any, args: Sequence[Any]) -> bool:
        """Recognise a sparse gradient that autograd copies only because the recorder holds it."""
        copied = op_name(func) == "clone" and isinstance(args[0], torch.Tensor)
        return copied and args[0].is_sparse and self.phase_now == "backward"

    def _communication(self, func: Any, values: Sequence[Any], what: Collective) -> Op:
        name = f"{func.namespace}.{op_name(func)}"
        stream = self.groups.stream_of(values)
        if what.kind in ("send", "recv"):  # NCCL runs the messages of a batch at once
            stream = f"{what.kind} {what.group} {what.peer}"
        blocking = what.kind == "barrier"  # the host waits for it, with NCCL too
        return Op(
            name, "collective", stream, collective=what, phase=self.phase_now, blocking=blocking
        )

    def _computation(
        self,
        func: Any,
        args: Sequence[Any],
        inputs: list[torch.Tensor],
        results: list[torch.Tensor],
        changed: list[torch.Tensor],
        assumed: Assumption,
    ) -> Op:
        name, stream = f"{func.namespace}.{op_name(func)}", self.streams.current.name
        if op_name(func) == "_local_scalar_dense":
            self._note(name, nbytes_of(inputs), assumed.why)
            # .item() copies to the host and waits for everything before it on the stream.
            cost = Cost("copy", (), "", 0.0, nbytes_of(inputs))
            return Op(name, "copy", stream, cost, blocking=True, phase=self.phase_now)
        cost = cost_of(func, args, inputs, results, changed, as_gpu=self._as_gpu)
        if assumed.why or cost.family == UNKNOWN:
            self._note(name, cost.nbytes, assumed.why or "no model knows it")
        return Op(name, "kernel", stream, cost, blocking=assumed.host_waits, phase=self.phase_now)

    def _append(self, op: Op, inputs: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        """Add an op, after its stream's front and the ends of what it reads and overwrites."""
        number, current = len(self.ops), self.streams.current
        before = number if self.batch_from is None else self.batch_from
        needs = self._dependencies.add(op.stream, number, inputs, written, before=before)
        merge(needs, current.front)
        # Its own stream keeps the order by itself.
        needs.pop(op.stream, None)
        self.ops.append(replace(op, after=tuple(sorted(needs.values()))))
        if op.stream == current.name:
            current.front = {op.stream: number}


@lru_cache(maxsize=4096)
def is_composite(func: Any) -> bool:
    """Return whether an op is made of other ops, which autograd would see in its place."""
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())  # noqa: SLF001
    return has_kernel("CompositeImplicitAutograd") and not has_kernel("CPU")


@lru_cache(maxsize=4096)
def is_free(func: Any) -> bool:
    """Return whether an op starts no kernel: it only makes a view, or allocates."""
    if op_name(func) in _FREE:
        return True
    returns = [each.alias_info for each in func._schema.returns]  # noqa: SLF001
    return bool(returns) and all(info is not None and not info.is_write for info in returns)


def _shards_of(value: Any) -> Any:
    """Return the shards of a list of distributed tensors; anything else as it is."""
    if not isinstance(value, (list, tuple)):
        return value
    shards = [each._local_tensor if isinstance(each, DTensor) else each for each in value]  # noqa: SLF001
    return [each.wait() if isinstance(each, AsyncCollectiveTensor) else each for each in shards]


def _spread_like(like: Any, shard: torch.Tensor) -> torch.Tensor:
    """Return a shard as a part of a tensor that is distributed as another one, if that is."""
    if not isinstance(like, DTensor):
        return shard
    return DTensor(shard, like._spec, requires_grad=False)  # type: ignore[no-untyped-call]  # noqa: SLF001


def _shapes(value: Any) -> list[torch.Size]:
    """Return the shapes in a list of tensors; scalars, such as step counts, have none."""
    values = value if isinstance(value, list) else []
    return [each.shape for each in values if isinstance(each, torch.Tensor) and each.dim()]


def _is_constant(tensor: torch.Tensor) -> bool:
    return getattr(tensor, "constant", None) is not None
