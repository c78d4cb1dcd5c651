"""weft's prices and order for graphs of Inductor: an estimator of nodes, and a scheduling pass.

``runtime_estimator`` is for ``aten_distributed_optimizations.custom_runtime_estimation``:
Inductor's own scheduler then works with the prices of a platform. ``schedule_overlap`` orders the
nodes itself, by simulating orders (``weft.gpu.overlap_order``), at no more peak memory than before.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import fx
from torch._C._distributed_c10d import _resolve_process_group

from weft.errors import WeftError
from weft.gpu.overlap_graph import OverlapGraph, OverlapNode
from weft.gpu.overlap_order import best_order
from weft.hardware import Platform, platform
from weft.planner.prices import Prices, default_library
from weft.step import Collective
from weft.torch.backend.c10d import GroupName, ProcessGroup
from weft.torch.c10d_collectives import BY_FUNCTIONAL_OP
from weft.torch.capture.op_costs import cost_of, nbytes_of, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Price = Callable[[fx.Node, int | None], float | None]

_MS = 1e3
_WAIT = torch.ops._c10d_functional.wait_tensor.default  # noqa: SLF001 - it has no public name
# Ops without a kernel of their own: views, and what Inductor computes on the host.
_NO_KERNEL = frozenset(
    (
        *("view", "permute", "unsqueeze", "squeeze", "expand", "split", "select", "slice", "t"),
        *("split_with_sizes", "view_as_complex", "view_as_real", "_conj", "alias", "transpose"),
        *("detach", "as_strided", "sym_size", "reshape", "_assert_scalar", "empty"),
        *("_local_scalar_dense", "_unsafe_view"),
    )
)
# Kernels of their own, which Inductor does not fuse with their neighbours.
_ALONE = ("mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "convolution", "sort", "topk", "cat")


class InductorPrices:
    """Milliseconds of a node of an FX graph by weft's models: kernels alone, collectives alone.

    Element-wise nodes are priced as fused: what one hands on to another is not written.
    """

    def __init__(self, machine: Platform) -> None:
        self._prices = Prices(machine, default_library(machine))
        self._ranks: dict[str, tuple[int, ...]] = {}

    def __call__(self, node: fx.Node, override_size: int | None = None) -> float | None:
        """Return the milliseconds of a node, None where nothing is known of it."""
        if node.op != "call_function":
            return None
        if is_collective(node):
            return self._collective(node, override_size)
        if node.target is _WAIT or node.target is operator.getitem or _name(node) in _NO_KERNEL:
            return 0.0
        return self._kernel(node)

    def _collective(self, node: fx.Node, override: int | None) -> float | None:
        if node.meta.get("val") is None:
            return None
        given, made = collective_bytes(node)
        # Inductor overrides the bytes of the input; weft counts the larger side, as nccl-tests.
        scale = 1.0 if override is None else override / max(1, given)
        what = Collective(collective_kind(node), max(1, int(max(given, made) * scale)), "bf16")
        return self._prices.collective(what, self._group(node)) * _MS

    def _group(self, node: fx.Node) -> tuple[int, ...]:
        name = group_name_of(node)
        if name not in self._ranks:
            self._ranks[name] = tuple(dist.get_process_group_ranks(group_of(node)))
        return self._ranks[name]

    def _kernel(self, node: fx.Node) -> float | None:
        outputs = tensors_in([node.meta.get("val")])
        if not outputs:
            return 0.0
        inputs = tensors_in([each.meta.get("val") for each in node.all_input_nodes])
        alone = _name(node) in _ALONE or "attention" in str(node.target)
        if not alone:
            inputs = tensors_in(
                [each.meta.get("val") for each in node.all_input_nodes if not _fuses(each)]
            )
            if node.users and all(_fuses(user) for user in node.users):
                outputs = []
        args = fx.node.map_arg(node.args, lambda each: each.meta.get("val"))
        try:
            cost = cost_of(node.target, args, inputs, outputs or inputs[:0])
        except (WeftError, AttributeError, IndexError, TypeError, ValueError):
            traffic = nbytes_of(inputs) + nbytes_of(outputs)
            return traffic / self._prices.platform.require_device().memory_rate * _MS
        if not cost.flops and not inputs and not outputs:
            return 0.0
        return self._prices.kernel(cost) * _MS


def runtime_estimator(machine: Platform | str) -> InductorPrices:
    """Return an estimator for ``custom_runtime_estimation`` of Inductor's overlap scheduling.

    >>> import torch._inductor.config as inductor
    >>> inductor.aten_distributed_optimizations.custom_runtime_estimation = runtime_estimator(
    ...     "h100-8"
    ... )
    """
    return InductorPrices(platform(machine) if isinstance(machine, str) else machine)


def is_collective(node: fx.Node) -> bool:
    """Return whether a node starts a functional collective."""
    return node.op == "call_function" and _name(node).removesuffix("_out") in BY_FUNCTIONAL_OP


def group_of(node: fx.Node) -> ProcessGroup:
    """Return the process group of a collective."""
    found: ProcessGroup = _resolve_process_group(GroupName(group_name_of(node)))
    return found


def collective_kind(node: fx.Node) -> str:
    """Return the collective that a node starts, as weft names it."""
    return BY_FUNCTIONAL_OP[_name(node).removesuffix("_out")].kind


def collective_bytes(node: fx.Node) -> tuple[int, int]:
    """Return the bytes of a collective's input and output; ``_out`` ops are given both."""
    given = node.args[0] if isinstance(node.args[0], (list, tuple)) else [node.args[0]]
    inputs = tensors_in([each.meta.get("val") for each in given if isinstance(each, fx.Node)])
    return nbytes_of(inputs), nbytes_of(tensors_in([node.meta.get("val")]))


def schedule_overlap(
    gm: fx.GraphModule, price: Price, *, max_memory: int | None = None
) -> fx.GraphModule:
    """Order a graph so that least communication is exposed, at no more peak memory than before.

    ``price`` gives the milliseconds of nodes, as for Inductor's own scheduler; ``max_memory``
    allows more bytes. For ``torch._inductor.config.post_grad_custom_post_pass``.
    """
    graph = overlap_graph(gm, price)
    before = graph.replay(range(len(graph.nodes)))
    order = best_order(graph, before.peak if max_memory is None else max_memory)
    reorder(gm, order)
    return gm


def reorder(gm: fx.GraphModule, order: Sequence[int]) -> None:
    """Put the nodes of a graph into an order, which must be a valid one."""
    nodes = list(gm.graph.nodes)
    output = nodes[-1]
    for number in order:
        if nodes[number] is not output:
            output.prepend(nodes[number])
    gm.graph.lint()
    gm.recompile()


def overlap_graph(gm: fx.GraphModule, price: Price) -> OverlapGraph:
    """Read a graph: seconds from prices, storages and their users from the fake tensors."""
    nodes = list(gm.graph.nodes)
    place = {node: number for number, node in enumerate(nodes)}
    seen: dict[int, int] = {}
    last_write: dict[int, int] = {}
    found, kept = [], set[int]()
    for number, node in enumerate(nodes):
        storages = list(_storages(node))
        fresh = [(s, n) for s, n in storages if seen.setdefault(s, number) == number]
        uses = {s for each in node.all_input_nodes for s, _ in _storages(each)}
        if node.op in ("placeholder", "output", "get_attr"):
            kept |= {s for s, _ in storages} | (uses if node.op == "output" else set())
        inputs = {place[each] for each in node.all_input_nodes}
        if node.op == "output":  # behind everything, also behind unused nodes
            inputs = set(range(number))
        inputs |= {last_write[s] for s in uses if s in last_write} - {number}
        if _mutates(node):
            readers = [place[u] for each in node.all_input_nodes for u in each.users]
            inputs |= {reader for reader in readers if reader < number}
            last_write |= dict.fromkeys(uses, number)
        milliseconds = 0.0 if node.op == "output" else price(node, None) or 0.0
        starts = is_collective(node)
        waits = place[node.all_input_nodes[0]] if node.target is _WAIT else -1
        if waits >= 0:
            waits = _start_of(nodes, waits, place)
        found.append(
            OverlapNode(
                tuple(sorted(inputs)),
                seconds=0.0 if starts else milliseconds / _MS,
                group=group_name_of(node) if starts else "",
                comm=milliseconds / _MS if starts else 0.0,
                waits_for=waits,
                allocates=tuple(fresh) if node.op == "call_function" else (),
                uses=tuple(uses | {s for s, _ in storages}),
            )
        )
    return OverlapGraph(tuple(found), frozenset(kept))


def _start_of(nodes: list[fx.Node], number: int, place: dict[fx.Node, int]) -> int:
    """Return the collective behind what a wait is given: coalesced ones return lists."""
    node = nodes[number]
    while not is_collective(node):
        if not node.all_input_nodes:
            return -1
        node = node.all_input_nodes[0]
    return place[node]


def _storages(node: fx.Node) -> Iterator[tuple[int, int]]:
    """Yield the storages of a node's tensors, with their bytes."""
    for tensor in tensors_in([node.meta.get("val")]):
        storage = tensor.untyped_storage()
        yield storage._cdata, storage.nbytes()  # noqa: SLF001 - a fake storage has no address


def _mutates(node: fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and schema.is_mutable


def _fuses(node: fx.Node) -> bool:
    """Return whether Inductor computes a node together with its neighbours."""
    if node.op != "call_function" or is_collective(node) or node.target is _WAIT:
        return False
    return _name(node) not in _ALONE and "attention" not in str(node.target)


def _name(node: fx.Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return str(getattr(packet or node.target, "__name__", node.target))


def group_name_of(node: fx.Node) -> str:
    """Return the group of a collective: the last argument of each functional collective."""
    return str(node.kwargs.get("group_name") or node.args[-1])
