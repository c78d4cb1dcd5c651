"""A graph without times as a step: its ops have the shapes of the file and weft's prices.

```
 nodes in the order of the host -> one iteration -> outermost nodes that are kernels -> StepGraph
```

PyTorch's graphs nest operators; the outermost one whose cost is known stands for what it calls.
Kernels follow each other on one stream. A collective waits for the kernels before it, and what
uses its tensors waits for it. Ops of graphs that have dependencies (Chakra) wait for these.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from math import prod, sqrt

from weft.errors import UsageError
from weft.schedule.ir import Cost
from weft.schedule.values import Group
from weft.step.step_graph import (
    COLLECTIVES,
    WORLD,
    Collective,
    Op,
    Phase,
    RankStep,
    StepGraph,
    Unsupported,
)
from weft.trace.formats.graph import Graph, GraphNode
from weft.trace.recorded.costs import bytes_moved, cost_of
from weft.trace.tensors import Tensor, tensors_of
from weft.trace.trace_collectives import TracedCollective, collective_of_arguments, kind_of

_PART = re.compile(r"\((\d+)\)$")  # Chakra cuts an operator at its launches: aten::mm(0), (1)
_INNER = re.compile(r"Tensor\(([\w:]+)")
_STEP = "Optimizer.step#"
_PHASES: dict[str, Phase] = {_STEP: "optimizer", "autograd::engine": "backward"}
# Operators that launch nothing: views, allocations, questions.
_FREE = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "view", "t"),
        *("as_strided", "as_strided_", "result_type", "detach", "detach_", "transpose", "permute"),
        *("reshape", "expand", "expand_as", "slice", "select", "narrow", "split", "chunk", "to"),
        *("squeeze", "unsqueeze", "flatten", "unflatten", "resize_", "set_", "is_same_size"),
        *("lift_fresh", "item", "alias", "_unsafe_view", "view_as", "unbind", "numpy_T", "size"),
        *("resolve_conj", "resolve_neg", "contiguous", "_has_compatible_shallow_copy_type"),
        *("split_with_sizes", "_reshape_alias", "_local_scalar_dense", "broadcast_tensors"),
    )
)
# Operators whose kernels read their inputs and write their results once.
_MOVING = frozenset(
    f"aten::{name}"
    for name in (
        *("add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "neg", "pow", "sqrt", "exp"),
        *("copy_", "clone", "fill_", "zero_", "cat", "stack", "where", "masked_fill", "tanh"),
        *("relu", "relu_", "gelu", "gelu_backward", "silu", "silu_backward", "sigmoid", "rsqrt"),
        *("sigmoid_backward", "tanh_backward", "threshold_backward", "clamp", "clamp_min"),
        *("clamp_min_", "addcmul_", "addcdiv_", "lerp_", "sum", "mean", "max", "norm", "eq", "gt"),
        *("native_dropout", "native_dropout_backward", "bernoulli_", "embedding", "index_select"),
        *("embedding_dense_backward", "nll_loss_forward", "nll_loss_backward", "index"),
        *("_log_softmax_backward_data", "max_pool2d_with_indices", "avg_pool2d", "gather"),
        *("max_pool2d_with_indices_backward", "native_batch_norm", "cudnn_batch_norm", "normal_"),
        *("native_batch_norm_backward", "cudnn_batch_norm_backward", "uniform_", "arange", "ones"),
        *("_adaptive_avg_pool2d", "_adaptive_avg_pool2d_backward", "scatter_", "zeros", "abs"),
    )
)
_FUSED = ("aten::_foreach_", "aten::_fused_", "aten::_amp_")
_FILTERS = {  # which of the inputs are multiplied by filters, and the filters
    "aten::cudnn_convolution": (0, 1),
    "aten::miopen_convolution": (0, 1),
    "aten::convolution_backward": (1, 2),
}
_AROUND = ("aten::scaled_dot_product_attention",)  # what it calls says which kernel it takes


def step_of_graph(graph: Graph, num_ranks: int) -> StepGraph:
    """Return the last whole iteration of a graph as a step that every rank runs."""
    return _Step(graph, num_ranks).written()


class _Step:
    """Writes the ops of one iteration."""

    def __init__(self, graph: Graph, num_ranks: int) -> None:
        self.graph, self.num_ranks = graph, num_ranks
        self.ops: list[Op] = []
        self.groups: dict[str, Group] = {}
        self._parent = {node.id: node.parent for node in graph.nodes}
        self._calls = set(self._parent.values())
        self._hosted = any(not node.is_gpu and "::" in node.name for node in graph.nodes)
        nested = any(node.parent is not None for node in graph.nodes)
        self._outside: Phase = "forward" if nested else ""
        self._pending: dict[int, int] = {}  # by storage, the collective that writes it
        self._known: dict[int, tuple[int, ...]] = {}  # by node, the ops that it stands for
        self._phase: dict[int | None, Phase] = {}
        self._recorded = False  # whether nodes of the library itself are there
        self._last = -1  # kernel
        self._names: Counter[str] = Counter()
        self._bytes: defaultdict[str, int] = defaultdict(int)
        self._why: dict[str, str] = {}

    def written(self) -> StepGraph:
        """Write the step."""
        nodes = _iteration(self.graph.nodes, self._parent)
        chosen = {id(node) for node in nodes}
        found = {
            self.graph.nodes[each.row].id: each
            for each in self.graph.collectives()
            if id(self.graph.nodes[each.row]) in chosen
        }
        if self._hosted and any(not node.is_gpu for node in nodes if node.id in found):
            found = {n.id: found[n.id] for n in nodes if n.id in found and not n.is_gpu}
        self._recorded = bool(found)
        taken: set[int | None] = set()
        for node in nodes:
            needed = self._needed(node)
            around = self._phase.get(node.parent, self._outside)
            own = (phase for start, phase in _PHASES.items() if node.name.startswith(start))
            self._phase[node.id] = next(own, around)
            if node.parent in taken and node.parent != node.id:
                taken.add(node.id)
                continue
            number = self._op(node, found.get(node.id), needed)
            self._known[node.id] = needed if number is None else (number,)
            if number is not None or node.id in found:  # what it calls belongs to it
                taken.add(node.id)
        if not self.ops:
            raise UsageError(
                f"{self.graph.path}: no node has shapes that say what it computes",
                "Use an execution trace of PyTorch, or a Chakra graph with inputs or num_ops.",
            )
        unsupported = tuple(
            Unsupported(name, count, self._bytes[name], self._why[name])
            for name, count in self._names.most_common()
        )
        return StepGraph(
            self.graph.path,
            self.num_ranks,
            (RankStep(tuple(range(self.num_ranks)), tuple(self.ops)),),
            self.groups,
            unsupported=unsupported,
            source=f"{self.graph.format} {self.graph.schema} without times: {self.graph.path}",
        )

    def _needed(self, node: GraphNode) -> tuple[int, ...]:
        """Return the ops that a node waits for: the last one of each stream."""
        last: dict[str, int] = {}
        for number in (n for each in node.needs for n in self._known.get(each, ())):
            stream = self.ops[number].stream
            last[stream] = max(number, last.get(stream, -1))
        return tuple(sorted(last.values()))

    def _op(
        self, node: GraphNode, what: TracedCollective | None, needed: tuple[int, ...]
    ) -> int | None:
        """Write what a node launches and return its number; None where it launches nothing."""
        asked = node.name == "record_param_comms" and node.id not in self._calls
        if what is None and (asked or (node.name.startswith("c10d::") and not self._recorded)):
            what = collective_of_arguments(0, node.arguments, kind_of(node.name))
        if what is not None:
            return self._collective(node, what, needed)
        part = _PART.search(node.name)
        name = node.name[: part.start()] if part else node.name
        free = name in _FREE or name.startswith("c10d::")
        if free or (part and part[1] != "0") or (node.is_gpu and self._hosted):
            return None
        cost = self._cost(name, node)
        return None if cost is None else self._kernel(name, node, cost, needed)

    def _cost(self, name: str, node: GraphNode) -> Cost | None:
        """Return what a node computes by itself; None for one that only calls others."""
        given = node.arguments
        if given.get("Operations") or (given.get("Bytes") and not self._hosted):
            flops, nbytes = (int(given.get(key, 0)) for key in ("Operations", "Bytes"))
            return Cost("", (), "bf16", float(flops), nbytes)
        on_host = node.devices and not any(each.startswith("cuda") for each in node.devices)
        if "::" not in name or name.startswith("autograd::") or on_host:
            return None
        if name in _FILTERS:
            return _convolution(name, _inputs(node), node.written)
        types = [_dtype(each) for each in given.get("Input type", ())]
        cost = cost_of(name, {**given, "Input type": types})
        shaped = cost is not None and cost.family != "elementwise"
        moving = name in _MOVING or name.startswith(_FUSED)
        calls = node.id in self._calls and (name in _AROUND or not (shaped or moving))
        return None if calls else cost if shaped else self._moved(name, node, cost, known=moving)

    def _moved(self, name: str, node: GraphNode, cost: Cost | None, *, known: bool) -> Cost | None:
        """Return an op that is priced by its bytes, whether that is known to be right or not."""
        nbytes = bytes_moved(name, [each.nbytes for each in _inputs(node)], node.written)
        if not known:
            self._unsupported(name, nbytes, "no cost is known: priced as memory traffic")
        if not node.written:
            return cost
        return Cost("elementwise", (nbytes,), cost.dtype if cost else "fp32", nbytes=nbytes)

    def _kernel(self, name: str, node: GraphNode, cost: Cost, needed: tuple[int, ...]) -> int:
        phase = self._phase[node.id]
        waits = {self._pending[each] for each in node.storages if each in self._pending}
        if phase == "optimizer" or not node.storages:
            waits |= set(self._pending.values())
        self._pending = {k: n for k, n in self._pending.items() if n not in waits}
        after = tuple(sorted({*needed, *waits}))
        self.ops.append(Op(name, cost=cost, after=after, phase=phase))
        self._last = len(self.ops) - 1
        return self._last

    def _collective(
        self, node: GraphNode, what: TracedCollective, needed: tuple[int, ...]
    ) -> int | None:
        if what.kind not in COLLECTIVES or what.kind in ("send", "recv") or not what.nbytes:
            if what.kind not in ("", "barrier"):
                self._unsupported(what.kind, what.nbytes or 0, "the file has no peer or no size")
            return None
        size = what.num_ranks or self.num_ranks
        if size == 1:
            return None
        if size > self.num_ranks or self.num_ranks % size:
            raise UsageError(
                f"{self.graph.path}: {what.kind} of {size} ranks (got {self.num_ranks} ranks)",
                f"Use --ranks {size}, or a multiple of it.",
            )
        group = WORLD if size == self.num_ranks else f"group of {size}"
        if group != WORLD:  # the file does not say which ranks: neighbours
            self.groups[group] = Group(size)
        root = 0 if what.kind in ("broadcast", "reduce", "gather", "scatter") else None
        made = Collective(what.kind, what.nbytes, what.dtype or "fp32", group, root)
        after = needed or ((self._last,) if self._last >= 0 else ())
        self.ops.append(
            Op(what.kind, "collective", "comm", None, made, after, phase=self._phase[node.id])
        )
        number = len(self.ops) - 1
        if not any(each.needs for each in self.graph.nodes):
            self._pending |= dict.fromkeys(node.storages or (-1,), number)
        return number

    def _unsupported(self, name: str, nbytes: int, why: str) -> None:
        self._names[name] += 1
        self._bytes[name] += nbytes
        self._why[name] = why


def _iteration(nodes: tuple[GraphNode, ...], parent: dict[int, int | None]) -> list[GraphNode]:
    """Return the nodes of the last whole iteration in order: what ends with the optimizer."""
    order = sorted(nodes, key=lambda node: node.id)
    steps = [node.id for node in order if node.name.startswith(_STEP)]
    if len(steps) < 2:
        return order
    inside = {steps[-2], steps[-1]}
    ends: dict[int, int] = {}
    for node in order:
        root = _within(node.id, inside, parent)
        if root is not None:
            ends[root] = node.id
    return [node for node in order if ends[steps[-2]] < node.id <= ends[steps[-1]]]


def _within(node: int, inside: Iterable[int], parent: dict[int, int | None]) -> int | None:
    """Return which of ``inside`` a node is below; None for none of them."""
    seen = set()
    at: int | None = node
    while at is not None and at not in seen:
        if at in inside:
            return at
        seen.add(at)
        at = parent.get(at)
    return None


def _dtype(written: str) -> str:
    """Return the dtype of a tensor, or of the first one of a list."""
    inner = _INNER.search(str(written))
    return inner[1] if inner else str(written)


def _inputs(node: GraphNode) -> list[Tensor]:
    types = [_dtype(each) for each in node.arguments.get("Input type", ())]
    return tensors_of({**node.arguments, "Input type": types})


def _convolution(name: str, inputs: list[Tensor], written: int) -> Cost | None:
    """Return a convolution of images; its backward pass is two of them."""
    place, filters = _FILTERS[name]
    if len(inputs) <= filters or [len(inputs[n].shape) for n in (place, filters)] != [4, 4]:
        return None
    images, weight = inputs[place], inputs[filters]
    item = images.nbytes // max(1, prod(images.shape))
    backward = filters == 2
    result = prod(inputs[0].shape) if backward else written // max(1, item)
    num_filters, depth, kernel, _ = weight.shape
    batch, channels, high, wide = images.shape
    pixels = result // max(1, batch * num_filters)
    stride = round(sqrt(high * wide / pixels)) if pixels else 1
    sides = batch, channels, high, wide, num_filters, kernel, max(1, stride), channels // depth
    scale = 2.0 if backward else 1.0
    flops = scale * 2.0 * result * prod(weight.shape[1:])
    math = "tf32" if item == 4 else "fp16"  # as torch lets cuDNN multiply by default
    nbytes = sum(each.nbytes for each in inputs) + written
    return Cost("convolution", sides, math, flops, nbytes, scale=scale)
