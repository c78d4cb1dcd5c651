"""How long one step takes on a platform, how sure that is, and where the time goes."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from math import log
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.cost.ranges import OTHER, Deviation, calibration_noise, range_term
from weft.errors import NoPlanError
from weft.models.expert_layer import has_experts
from weft.planner.on_cores import on_cores
from weft.planner.prices import Prices, default_library
from weft.result_tables import ResultTables, Rows, Tables
from weft.schedule import CommandKind
from weft.step import Collective, StepEngine, queues_of
from weft.step.contention import Contention, contention
from weft.timeline import Activity, Timeline
from weft.timeline.intervals import GroupedIntervals, covered_by_group, overlap_by_group
from weft.units import format_size, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from weft.hardware import Platform
    from weft.models.stacks import Stack
    from weft.schedule import Cost
    from weft.step import HostModel, Memory, StepGraph

# What no model knows may take from half to three times its memory traffic.
_UNKNOWN = (0.5, 3.0)
# Units that collectives take from kernels, at the worst: GEMMs next to RCCL took 1.33 to 1.41 times
# as long on MI300X where 1.2 is expected. At best they take none, though memory is shared still.
_BEST, _WORST = 1e-9, 2.0


@dataclass(frozen=True)
class Prediction(ResultTables):
    """One step: its time with a range, the timeline of each class of ranks, and its memory.

    ``period`` is how far apart steps begin, where one begins before the last has ended.
    ``contention`` is what the slowest ranks lost to ops that ran at the same time. ``of_experts``
    is the share of a step with experts that follows its device, not its host.
    """

    graph: StepGraph
    platform: Platform
    timeline: Timeline
    low: float
    high: float
    period: float | None = None
    contention: tuple[Contention, ...] = ()
    of_experts: float = 0.0

    def __repr__(self) -> str:
        what = f"{self.graph.name} on {self.platform.name}"
        took = f"{format_time(self.seconds)} ({format_time(self.low)} to {format_time(self.high)})"
        return f"<Prediction of {what}: {took}, {self.timeline.basis}>"

    @property
    def seconds(self) -> float:
        """How long the step takes."""
        return self.timeline.makespan if self.period is None else self.period

    @cached_property
    def slowest(self) -> int:
        """Return the number of the class of ranks that ends last."""
        ends = [self.timeline.of(rank=rank).makespan for rank in self.timeline.ranks.tolist()]
        return int(np.argmax(ends))

    @cached_property
    def breakdown(self) -> dict[str, float]:
        """Return what the slowest ranks do, in seconds that add up to the step.

        Computation covers communication; what it does not cover is exposed, or waiting where
        another rank is late. A device without work waits for its host, or for nothing we know.
        """
        mine = self.timeline.of(rank=int(self.timeline.ranks[self.slowest]))
        host = np.isin(mine.queue, [i for i, n in enumerate(mine.queues) if n == "host"])
        computing = mine.activity == Activity.COMPUTATION
        moving = mine.activity == Activity.COMMUNICATION
        waiting = (mine.kind == CommandKind.WAIT) & ~host & self._between_ranks(mine)
        issuing = host & (mine.kind != CommandKind.WAIT)
        result, before = {}, np.zeros(len(computing), bool)
        # In this order of precedence: a moment counts for the first that covers it, so parts add
        # up.
        for name, chosen in (
            ("compute", computing),
            ("exposed", moving),
            ("waiting", waiting),
            ("host", issuing),
        ):
            result[name] = _alone(mine, chosen, before)
            before = before | chosen
        over = sum(result.values()) - self.seconds
        # Where a step begins before the last has ended, spans exceed the period: what overlaps the
        # next step is taken off.
        for name in ("host", "exposed") if over > 0 else ():  # the next step has begun meanwhile
            result[name], over = max(0.0, result[name] - over), max(0.0, over - result[name])
        left = self.seconds - sum(result.values())
        result["idle"] = left if left > 1e-9 else 0.0  # less is rounding
        return result

    @staticmethod
    def _between_ranks(mine: Timeline) -> NDArray[np.bool_]:
        """Return the waits for other ranks: their flags have the number of another's signal."""
        # A class signals its own streams under flags of its own, and other classes under theirs.
        signals = np.unique(mine.flag[(mine.kind == CommandKind.SIGNAL)])
        return ~np.isin(mine.flag, signals)

    @cached_property
    def families(self) -> dict[str, float]:
        """Return seconds of kernels by family on the slowest ranks, the largest first."""
        rank = int(self.timeline.ranks[self.slowest])
        step = self.graph.steps[self.slowest]
        total: dict[str, float] = defaultdict(float)
        for stream, queue in queues_of(step).items():
            mine = self.timeline.of(
                rank=rank, queue=queue, kind=(CommandKind.KERNEL, CommandKind.COPY)
            )
            ops = [op for op in step.ops if op.stream == stream and op.kind != "host"]
            for op, seconds in zip(ops, (mine.end - mine.start).tolist(), strict=True):
                if op.collective is None:
                    total[op.cost.family if op.cost and op.cost.family else op.kind] += seconds
        return dict(sorted(total.items(), key=lambda each: -each[1]))

    @property
    def communication(self) -> float:
        """Return the seconds in which the slowest ranks move data."""
        return float(self.timeline.communication[self.slowest])

    def critical_path(self, most: int = 8) -> list[tuple[str, float]]:
        """Return what decided the step: names of the spans it ran through, with their seconds."""
        timeline, total = self.timeline, defaultdict[str, float](float)
        if not (timeline.kind == CommandKind.SUBMIT).any():
            return []
        for span in timeline.critical_path():
            name = timeline.names[timeline.name[span]]
            kind = timeline.kind[span]
            if kind == CommandKind.WAIT:  # what it waited for is on the path itself
                continue
            name = (
                name
                if kind in (CommandKind.KERNEL, CommandKind.COPY)
                else CommandKind(kind).name.lower()
            )
            total[name] += float(timeline.end[span] - timeline.start[span])
        return sorted(total.items(), key=lambda each: -each[1])[:most]

    def tables(self) -> Tables:
        """Return the tables of a prediction: where the step goes, kernels, what decided it."""

        def parts(found: Iterable[tuple[str, float]]) -> Rows:
            whole = self.seconds or 1.0  # a step without ops takes none
            return [{"name": n, "seconds": s, "share": s / whole} for n, s in found]

        return {
            "breakdown": lambda: parts(self.breakdown.items()),
            "families": lambda: parts(self.families.items()),
            "critical_path": lambda: parts(self.critical_path()),
            "step": lambda: [self.row()],
        }

    def row(self) -> dict[str, Any]:
        """Return the result as programs read it."""
        memory = self.graph.memory
        return {
            "workload": self.graph.name,
            "ranks": self.graph.num_ranks,
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            "breakdown": {
                **self.breakdown,
                "communication": self.communication,
                "families": self.families,
            },
            "contention": [each.as_row() for each in self.contention],
            "critical_path": [{"name": n, "seconds": s} for n, s in self.critical_path()],
            "memory": None if memory is None else {**memory_parts(memory), "total": memory.total},
            "unsupported": [
                {"name": u.name, "count": u.count, "nbytes": u.nbytes, "why": u.why}
                for u in self.graph.unsupported
            ],
            "basis": self.timeline.basis,
        }


def predict(
    graph: StepGraph,
    platform: Platform,
    *,
    host: HostModel | None = None,
    anyway: bool = False,
    prices: Prices | None = None,
    ranged: bool = True,
    stack: Stack | None = None,
) -> Prediction:
    """Predict one step; one that does not fit into memory is refused, unless ``anyway``.

    Unless it is ``ranged`` the ends of its range are the prediction itself. ``stack`` is what the
    graph was made with: its range depends on how well that is known.
    """
    if not anyway:
        check_memory(graph.name, graph.memory, platform)
    prices = prices or Prices(platform, default_library(platform))
    graph = on_cores(graph, platform, prices.library)
    engine = StepEngine(graph, platform, prices, host=host)
    run = engine.run()
    middle, seconds = run.timeline(), run.seconds
    ends = step_range(engine, prices, stack) if ranged else StepRange(seconds, seconds)
    low, high = min(ends.low, seconds), max(ends.high, seconds)
    found = Prediction(graph, platform, middle, low, high, of_experts=ends.of_experts)
    return replace(found, contention=contention(run, found.slowest))


class StepRange(NamedTuple):
    """The ends of the range of a step; of one with experts, what share follows its device."""

    low: float
    high: float
    of_experts: float = 0.0


def step_range(engine: StepEngine, prices: Prices, stack: Stack | None = None) -> StepRange:
    """Return the ends of the range of a step.

    All prices are put to their ends, with no units held and with the most. Units that are held
    slow kernels down, and with them what kernels ask of memory: a step that its communication
    bounds may be shorter for it. So both are run at both ends. Of these deviations the step has
    what is left where independent ones are added as squares. The stack, the host and the noise
    of a calibration concern all ops alike, experts what the device takes.
    """
    middle = engine.run().seconds
    if not middle:
        return StepRange(0.0, 0.0)
    # Recorded durations have no price: they move by the factor of the range alone.
    low, high = (
        engine.repriced(_Edge(prices, side), factor)
        for side, factor in zip(("low", "high"), _recorded(), strict=True)
    )
    held = (_BEST, _WORST)
    lowest = min(low.run(pressure=each).seconds for each in held)
    highest = max(high.run(pressure=each).seconds for each in held)
    software = "none" if stack is None else stack.name
    hosts = range_term("hosts", software)
    faster, slower = (engine.repriced(prices, host=each).run().seconds for each in hosts.factors)
    ops = Deviation.between(lowest / middle, highest / middle)
    platform = prices.platform
    common = [
        Deviation.between(faster / middle, slower / middle),
        calibration_noise(platform.noise),
    ]
    of_experts = 0.0
    # Terms of stacks and experts are residuals of GPU steps.
    if not platform.require_device().is_core:
        if has_experts(engine.graph):
            of_experts = max(0.0, 1 - log(slower / middle) / hosts.up)
        common.append(range_term("stacks", software))
        common.append(range_term("experts", OTHER).times(of_experts))
    down, up = (joint_share(engine.graph, prices, side) for side in ("low", "high"))
    factors = Deviation(down * ops.down, up * ops.up).joined(*common).factors
    return StepRange(middle * factors[0], middle * factors[1], of_experts)


def _recorded() -> tuple[float, float]:
    """Return the range of ops that were measured in another step or on another machine."""
    return range_term("elsewhere", "recorded").factors


def joint_share(graph: StepGraph, prices: Prices, side: str) -> float:
    """Return the deviation of all ops together over that of all of them in one direction.

    Kernels of one family have some of it in common, shapes the rest by themselves; families and
    kinds of collectives err independently.
    """
    common: dict[str, float] = defaultdict(float)
    counted: dict[Cost | Collective, int] = defaultdict(int)
    members: dict[Collective, tuple[int, ...]] = {}
    for step in graph.steps:
        for op in step.ops:
            if op.seconds is not None:
                common["recorded"] += op.seconds * abs(1 - _recorded()[side == "high"])
            elif op.collective is not None:
                counted[op.collective] += 1
                if op.collective not in members:
                    members[op.collective] = graph.members(op.collective.group, step.ranks[0])
            elif op.cost is not None:
                counted[op.cost] += 1
    edge = _Edge(prices, side)
    # Quadrature: errors that ops have in common add up linearly, independent ones as squares.
    whole, squares = sum(common.values()), 0.0
    for what, times in counted.items():
        if isinstance(what, Collective):
            ranks = members[what]
            away = edge.collective(what, ranks) - prices.collective(what, ranks)
            name, independent = what.kind, prices.collective_price(what, ranks).independent
        else:
            away = edge.kernel(what) - prices.kernel(what)
            name, independent = what.family, prices.kernel_price(what).independent
        each = times * abs(away)
        whole += each
        squares += independent * each**2
        common[name] += (1 - independent) ** 0.5 * each
    squares += sum(each**2 for each in common.values())
    return float(squares**0.5 / whole) if whole else 1.0


def predict_seconds(
    graph: StepGraph, platform: Platform, *, host: HostModel | None = None
) -> float:
    """Return how long a step takes, without a timeline or a range."""
    prices = Prices(platform, default_library(platform))
    graph = on_cores(graph, platform, prices.library)
    return StepEngine(graph, platform, prices, host=host).run().seconds


class _Edge:
    """The low or high end of prices."""

    def __init__(self, prices: Prices, side: str) -> None:
        self._prices, self._side = prices, side

    def kernel(self, cost: Cost) -> float:
        if cost.family == "other":
            low, high = _UNKNOWN
            return self._prices.kernel(cost) * (low if self._side == "low" else high)
        return float(getattr(self._prices.kernel_price(cost), self._side))

    def collective(self, what: Collective, ranks: tuple[int, ...]) -> float:
        return float(getattr(self._prices.collective_price(what, ranks), self._side))


def _alone(mine: Timeline, chosen: NDArray[np.bool_], others: NDArray[np.bool_]) -> float:
    """Return the seconds that the chosen spans cover and the others do not."""

    def intervals(which: NDArray[np.bool_]) -> GroupedIntervals:
        return GroupedIntervals(np.zeros(which.sum(), np.int64), mine.start[which], mine.end[which])

    if not others.any():
        return float(covered_by_group(intervals(chosen), 1)[0])
    return float(overlap_by_group(intervals(chosen), intervals(others), 1).first[0])


def memory_parts(memory: Memory) -> dict[str, int]:
    """Return the bytes of each part of what a rank needs."""
    names = ("weights", "gradients", "optimizer", "activations", "other")
    return {name: getattr(memory, name) for name in names}


def check_memory(name: str, memory: Memory | None, platform: Platform) -> None:
    """Raise for a step that needs more memory than a device has, with what would help."""
    device = platform.require_device()
    if memory is None or memory.total <= device.memory_bytes:
        return
    parts = ", ".join(f"{name} {format_size(n)}" for name, n in memory_parts(memory).items() if n)
    shared = memory.weights + memory.gradients + memory.optimizer
    hints = []
    # Suggest what leaves half of the memory to the rest.
    half = device.memory_bytes // 2
    if shared > half * platform.num_ranks:
        part = format_size(-(-shared // platform.num_ranks))
        hints.append(
            "more ranks or larger devices (weights, gradients and optimizer shared among all "
            f"{platform.num_ranks} ranks are {part} a rank); --set fsdp=true shares them"
        )
    elif shared > half:
        times = -(-shared // half)
        hints.append(f"share weights and optimizer among {times} times as many ranks (fsdp, tp)")
        hints.append("weft plan --search layout, which finds the layouts of a transformer that fit")
    if memory.activations > half:
        hints.append("a smaller batch, or recompute activations")
    hints.append("--anyway to go on all the same")
    raise NoPlanError(
        f"{name} needs {format_size(memory.total)} a rank ({parts}); {device.title} has "
        f"{format_size(device.memory_bytes)}.",
        f"Try: {'; '.join(hints)}.",
    )
