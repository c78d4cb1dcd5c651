"""Training graphs with collectives, rebuilt as FX graphs from the folder ``fx_graphs`` of the data.

The files have the nodes of graphs before Inductor's fusion with shapes, groups and edges. Arguments
that are no tensors are not in them, so the graphs can be scheduled, not run. The file
``collective_prices.csv`` has one price list for all collectives, by the bytes of one rank's part.
"""

from __future__ import annotations

import csv
import gzip
import json
import operator
import time
from bisect import bisect
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import fx
from torch._inductor.fx_passes import node_runtime_estimation, overlap_scheduling
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.overlap_bound import exposed_bound
from weft.gpu.overlap_order import best_order
from weft.torch.apply.inductor_overlap import (
    InductorPrices,
    collective_bytes,
    collective_kind,
    group_name_of,
    group_of,
    is_collective,
    overlap_graph,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from weft.gpu.overlap_graph import OverlapReplay

_VIEWS = frozenset(
    (
        *("aten.view.default", "aten.permute.default", "aten.unsqueeze.default", "getitem"),
        *("aten.squeeze.dim", "aten.expand.default", "aten.view_as_complex.default"),
        *("aten.view_as_real.default", "aten.split.Tensor", "aten.split_with_sizes.default"),
        *("aten.select.int", "aten.slice.Tensor", "aten._conj.default", "c10d.wait_tensor.default"),
    )
)
_WORLD = 256


@dataclass
class TrainingGraph:
    """One graph of the data; ``inside`` are the names of its groups inside a node."""

    name: str
    module: fx.GraphModule
    inside: frozenset[str]


def training_graphs(folder: Path) -> Iterator[str]:
    """Return the names of the graphs in a folder."""
    for path in sorted(folder.glob("*.json.gz")):
        yield path.name.removesuffix(".json.gz")


def read_training_graph(folder: Path, name: str) -> TrainingGraph:
    """Read a graph; process groups are those of a fake backend."""
    with gzip.open(folder / f"{name}.json.gz", "rt") as file:
        table = json.load(file)
    if not dist.is_initialized():
        dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=_WORLD)  # type: ignore[attr-defined]
    groups = {
        group: str(dist.new_group(list(range(size))).group_name)
        for group, size in table["groups"].items()
    }
    made = _Rebuilt(groups)
    for row in table["nodes"]:
        made.add(row)
    module = fx.GraphModule(torch.nn.Module(), made.graph)
    # Group 0 shards parameters, between nodes; tensor and expert parallelism stay inside one.
    inside = frozenset(name for group, name in groups.items() if group != "0")
    return TrainingGraph(name, module, inside)


class _Rebuilt:
    """Nodes of a file as nodes of FX, with fake tensors that share storage where views do."""

    def __init__(self, groups: dict[str, str]) -> None:
        self.graph = fx.Graph()
        self._groups, self._fake = groups, FakeTensorMode()
        self._nodes: dict[int, fx.Node] = {}
        self._values: dict[int, Any] = {}

    def add(self, row: dict[str, Any]) -> None:
        inputs = [self._nodes[number] for number in row.get("inputs", ())]
        if row["op"] == "output":
            self.graph.output(tuple(inputs))
            return
        node = self._node(row, inputs)
        value = self._value(row, node)
        self._nodes[row["id"]], self._values[row["id"]] = node, value
        if value is not None:
            node.meta["val"] = value

    def _node(self, row: dict[str, Any], inputs: list[fx.Node]) -> fx.Node:
        op, size = row["op"], int(row.get("group_size", 0))
        if op == "input":
            return self.graph.placeholder(row["name"])
        if op == "getitem":
            place = sum(user.target is operator.getitem for user in inputs[0].users)
            return self.graph.call_function(operator.getitem, (inputs[0], place))
        if not row.get("is_collective"):
            return self.graph.call_function(_target(op), tuple(inputs))
        group = self._groups[row["group"]]
        arguments: tuple[Any, ...]
        match op.split(".")[1]:
            case "all_gather_into_tensor":
                arguments = (size, group)
            case "reduce_scatter_tensor":
                arguments = ("avg", size, group)
            case "all_reduce":
                arguments = ("sum", group)
            case _:
                rows = row["in"][0][0][0] // size
                arguments = ([row["out"][0][0] // size] * size, [rows] * size, group)
        return self.graph.call_function(_target(op), (inputs[0], *arguments))

    def _value(self, row: dict[str, Any], node: fx.Node) -> Any:
        out, given = row.get("out"), row.get("inputs") or [None]
        base = self._values.get(given[0]) if row["op"] in _VIEWS else None
        if not isinstance(out, list) or not out or not isinstance(out[0], list):
            return None
        if len(out) == 2 and isinstance(out[1], str):
            if row["op"] == "getitem" and isinstance(base, list):
                return base[node.args[1]] if node.args[1] < len(base) else self._tensor(out, None)  # type: ignore[index,operator]
            return self._tensor(out, base)
        return [self._tensor(each, base) for each in out if isinstance(each, list) and each]

    def _tensor(self, spec: list[Any], base: Any) -> torch.Tensor:
        """Return a fake tensor, of the storage of another one if that is as large."""
        shape, dtype = spec[0], getattr(torch, spec[1])
        with self._fake:
            if isinstance(base, torch.Tensor) and base.dtype == dtype:
                made = torch.empty(shape, dtype=dtype)
                if made.numel() <= base.numel():
                    return base.as_strided(shape, made.stride())
                return base.as_strided(shape, [0] * len(shape))
            return torch.empty(shape, dtype=dtype)


def _target(op: str) -> Any:
    space, _, rest = op.partition(".")
    name, _, overload = rest.partition(".")
    spaces = {"aten": torch.ops.aten, "prims": torch.ops.prims}
    spaces["c10d"] = torch.ops._c10d_functional  # noqa: SLF001 - it has no public name
    if space in spaces:
        return getattr(getattr(spaces[space], name), overload)

    def opaque(*_: Any) -> None:
        """Stand for an op that is none of the dispatcher's."""

    opaque.__name__ = op.replace(".", "_")
    return opaque


@dataclass
class ListedPrices:
    """One price list for all schedulers: collectives from the file, kernels by weft's models.

    A reduce-scatter is priced as the all-gather of the same shards, an all-to-all as the all-gather
    of one peer's part; 256 ranks as 64, which are the most that the list has.
    """

    folder: Path
    kernels: InductorPrices
    inside: frozenset[str]
    _known: dict[Any, float] = field(default_factory=dict)
    _lists: dict[tuple[str, str, str], list[tuple[int, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with (self.folder / "collective_prices.csv").open() as file:
            for row in csv.DictReader(file):
                key = row["table"], row["group"], row["collective"]
                found = int(row["size_bytes"]), float(row["estimate_ms"])
                self._lists.setdefault(key, []).append(found)

    def __call__(self, node: fx.Node, override_size: int | None = None) -> float | None:
        """Return the milliseconds of a node."""
        if not is_collective(node):
            if node not in self._known:
                self._known[node] = self.kernels(node) or 0.0
            return self._known[node]
        kind, (given, made) = collective_kind(node), collective_bytes(node)
        group = group_name_of(node)
        size = group_of(node).size()
        part: float = given if kind == "all_reduce" else min(given, made)
        part *= 1.0 if override_size is None else override_size / max(1, given)
        if kind == "all_to_all":
            part /= size
        table = "colls8_8" if size <= 8 else "colls64_1"
        name = "all_reduce" if kind == "all_reduce" else "all_gather_into_tensor"
        place = "1" if size <= 8 and (group in self.inside or kind == "all_reduce") else "0"
        return _interpolated(self._lists[table, place, name], part)


def _interpolated(listed: list[tuple[int, float]], nbytes: float) -> float:
    """Return a price between those listed; below the first, no less than 0.3 of it."""
    place = min(max(bisect([size for size, _ in listed], nbytes), 1), len(listed) - 1)
    (size, low), (larger, high) = listed[place - 1], listed[place]
    found = low + (high - low) * (nbytes - size) / (larger - size)
    return max(found, 0.3 * listed[0][1])


@dataclass(frozen=True, slots=True)
class Ordered:
    """One graph by Inductor's order and by weft's, with the seconds that making them took.

    ``bound`` are the seconds that any order exposes, with any memory.
    """

    by_inductor: OverlapReplay
    by_weft: OverlapReplay
    bound: float
    inductor_took: float
    weft_took: float


def ordered_by_both(folder: Path, name: str, kernels: InductorPrices, *, buckets: bool) -> Ordered:
    """Order a graph by both schedulers; weft gets Inductor's buckets, and no more memory."""
    read = read_training_graph(folder, name)
    prices = ListedPrices(folder, kernels, read.inside)
    plain = overlap_graph(read.module, prices)
    start = time.perf_counter()
    with ExitStack() as patched:
        # What Inductor asks of a GPU: rooflines, which the price list overrides, and logs of flops.
        for module, what in (
            (overlap_scheduling, "estimate_roofline_runtime_ms"),
            (node_runtime_estimation, "_log_compute_estimations"),
            (node_runtime_estimation, "_log_collective_benchmarks"),
        ):
            patched.enter_context(mock.patch.object(module, what, return_value=0.0))
        theirs = overlap_scheduling.schedule_overlap_bucketing(
            read.module,
            custom_runtime_estimation=prices,
            compute_estimator="analytical",
            collective_bucketing=buckets,
            pre_bucketing_fsdp_collectives=buckets,
        )
    inductor_took = time.perf_counter() - start
    scheduled = overlap_graph(theirs, prices)
    by_inductor = scheduled.replay(range(len(scheduled.nodes)))
    graph = scheduled if buckets else plain
    start = time.perf_counter()
    order = best_order(graph, by_inductor.peak)
    weft_took = time.perf_counter() - start
    bound = exposed_bound(graph)
    return Ordered(by_inductor, graph.replay(order), bound, inductor_took, weft_took)
