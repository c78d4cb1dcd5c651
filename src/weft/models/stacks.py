"""What a software stack makes of a step: which kernels it has, and what it adds to them.

Generators write the ops of a model as an ideal program would run them: element-wise work fused
where it can be, and no copies. A stack is a small file of ``stacks/`` that says how a real program
differs: by which library attention runs, how many passes element-wise kernels make, which copies
sharding adds, and how long products take at sustained clocks. Its numbers are fitted to measured
steps; each file names them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path

from weft.errors import FormatError, UnknownNameError, nearest
from weft.hardware.files import read_toml
from weft.models.expert_layer import EXPERT_OPS
from weft.models.transformer_step import HEAD_OPS
from weft.schedule.ir import Cost
from weft.step.host_model import HostModel
from weft.step.step_graph import Op, RankStep, StepGraph

FOLDER = Path(__file__).parent / "stacks"
_HOST = HostModel()
_PRODUCTS = ("gemm", "bmm", "moe")
_ATTENTION = ("attention", "attention-backward")
_WAITS = ("all_gather", "reduce_scatter", "all_reduce")
_STAGES = ("pp", "pp back")  # groups of ranks that hold other stages of a pipeline
_SHARED = "comm dp"  # the stream of weights and gradients that data-parallel ranks share


@dataclass(frozen=True, slots=True)
class Stack:
    """How a program runs the ops of a model, each as a multiple of what the cost models say.

    ``attention`` is the library of attention kernels, ``attention_forward`` and
    ``attention_backward`` how much longer this program's variant takes. ``products`` is the
    duration of matrix products at sustained clocks over that of short runs. ``passes`` is how
    often element-wise kernels, norms and the like move their data, over the fused op list.
    ``head`` is the same for the products of the vocabulary and the loss.
    ``copies`` is how often sharded weights and gradients are copied between parameters and the
    buffers of collectives. ``host`` is what the host spends on an op over the usual overheads of
    PyTorch, which is more where an op of the list is several kernels; 0: CUDA graphs.
    ``host_experts`` is the same for ops of experts from one exchange of tokens to the other, which
    are a kernel for each expert, and ``host_native`` for ops that C++ launches without Python: of
    backward passes, but for what they compute again, and collectives; None: as ``host``. With
    ``blocking_messages`` the host waits for what it receives from other pipeline stages, with
    ``blocking_passes`` for the end of each forward and backward pass.
    ``between_steps`` is seconds of the host between two steps: data, logging, the optimizer's own.
    """

    name: str
    source: str = ""
    attention: str = ""
    attention_forward: float = 1.0
    attention_backward: float = 1.0
    products: float = 1.0
    passes: float = 1.0
    head: float = 1.0
    copies: float = 0.0
    host: float = 1.0
    host_experts: float | None = None
    host_native: float | None = None
    blocking_messages: bool = False
    blocking_passes: bool = False
    between_steps: float = 0.0

    def applied(self, graph: StepGraph) -> StepGraph:
        """Return the step as this stack runs it."""
        steps = []
        for each in graph.steps:
            step = _copied(each, self.copies) if self.copies else each
            ops = [self._op(op) for op in step.ops]
            if self.blocking_passes:
                _block_at_ends(ops)
            steps.append(replace(step, ops=self._ended(ops)))
        return replace(graph, steps=tuple(steps))

    def _ended(self, ops: list[Op]) -> tuple[Op, ...]:
        """Add what the host does behind a step, once its last kernel has ended."""
        if not self.between_steps or not ops:
            return tuple(ops)
        last = Op("between steps", "host", after=(len(ops) - 1,), seconds=self.between_steps)
        return (*ops, last)

    def _host_factor(self, op: Op) -> float:
        """Return what the host spends on an op over the usual overheads."""
        of_experts = op.name in EXPERT_OPS or (op.collective and op.collective.group == "ep")
        if of_experts and self.host_experts is not None:
            return self.host_experts
        by_autograd = op.phase == "backward" and not op.recomputed
        if self.host_native is not None and (by_autograd or op.kind == "collective"):
            return self.host_native
        return self.host

    def _op(self, op: Op) -> Op:
        cost, factor = op.cost, self._host_factor(op)
        usual = factor == 1.0 and self.host_native is None
        if not usual and op.kind != "host" and op.host is None:
            op = replace(op, host=factor * (_HOST.gap + _HOST.before + _HOST.after))
        if self.blocking_messages and op.collective is not None:
            op = replace(op, blocking=op.blocking or op.collective.kind == "recv")
        if cost is None:
            return op
        if op.name in HEAD_OPS:
            cost = replace(cost, scale=cost.scale * self.head)
        if cost.family in _ATTENTION:
            forward = cost.family == "attention"
            scale = self.attention_forward if forward else self.attention_backward
            cost = replace(cost, implementation=self.attention, scale=cost.scale * scale)
        elif cost.family in _PRODUCTS:
            cost = replace(cost, scale=cost.scale * self.products)
        elif cost.family not in ("copy", "optimizer"):
            cost = replace(cost, scale=cost.scale * self.passes)
        return replace(op, cost=cost)


def _block_at_ends(ops: list[Op]) -> None:
    """Make the host wait for the last kernel of each pass.

    A pass ends where another phase begins, and where stages exchange what they have computed.
    """
    last = -1
    for number, (op, following) in enumerate(zip_longest(ops, ops[1:])):
        if op.kind == "kernel":
            last = number
        what = None if following is None else following.collective
        exchanges = what is not None and what.group in _STAGES
        if last >= 0 and (exchanges or following is None or following.phase != op.phase):
            ops[last] = replace(ops[last], blocking=True)


def stack_names() -> tuple[str, ...]:
    """Return the names of the stacks that weft knows."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@lru_cache
def stack_named(name: str) -> Stack:
    """Read a stack by its name."""
    if name not in stack_names():
        raise UnknownNameError(f"--stack: unknown stack {name!r}", nearest(name, stack_names()))
    return _read(name, read_toml(FOLDER / f"{name}.toml", FormatError))


def _read(name: str, found: Mapping[str, object]) -> Stack:
    known = {each.name for each in fields(Stack)} - {"name"}
    for key in found:
        if key not in known:
            raise FormatError(f"stack {name}: unknown key {key!r}", nearest(key, sorted(known)))
    return Stack(name, **found)  # type: ignore[arg-type]


def _copied(step: RankStep, times: float) -> RankStep:
    """Add the copies between parameters and the buffers of sharded collectives.

    Gathered weights are copied out before their first use, gradients in before they are reduced.
    """
    gathers = {
        number: op.collective
        for number, op in enumerate(step.ops)
        if op.collective is not None and op.stream == _SHARED and op.collective.kind in _WAITS
    }
    ops: list[Op] = []
    place: dict[int, int] = {}  # of ops, of before
    copied: dict[int, int] = {}  # gathers whose copy is there

    def copy(name: str, like: Op, nbytes: int, after: tuple[int, ...]) -> int:
        cost = Cost("copy", (), "", 0.0, round(2 * times * nbytes))
        ops.append(Op(name, cost=cost, after=after, phase=like.phase))
        return len(ops) - 1

    for number, op in enumerate(step.ops):
        after = tuple(place[each] for each in op.after)
        what = gathers.get(number)
        if what is not None and what.kind != "all_gather":
            inside = copy("copy in", op, what.nbytes, after)
            after = (*after, inside)
        elif op.kind == "kernel":
            for each in op.after:
                found = gathers.get(each)
                if found is not None and found.kind == "all_gather" and each not in copied:
                    copied[each] = copy("copy out", op, found.nbytes, (place[each],))
        place[number] = len(ops)
        ops.append(replace(op, after=after))
    return replace(step, ops=tuple(ops))
