"""The seconds of a whole step when its collectives are carried out by chosen candidates."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from weft.step import Execution

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from weft.planner.candidates import Candidate, CollectiveGroup, Place
    from weft.planner.prices import Prices
    from weft.step import Op, StepEngine, StepRun

    Floats = NDArray[np.float64]
    Chosen = Sequence[tuple[CollectiveGroup, Candidate]]


@dataclass(frozen=True, slots=True)
class Overlap:
    """What ran at the same time: the share of each collective, and the kernels next to it."""

    share: dict[Place, float]
    kernels: dict[Place, dict[int, float]]  # by collective, seconds of each kernel next to it


class StepEvaluator:
    """Runs one step with many candidates, and caches results."""

    def __init__(self, engine: StepEngine, prices: Prices) -> None:
        self.engine, self.prices = engine, prices
        self.graph, self.platform = engine.graph, prices.platform
        self._main = [_main_stream(step.ops) for step in self.graph.steps]
        self._found: dict[tuple[Candidate, ...], float] = {}
        self._known: dict[tuple[Place, Candidate], dict[Place, Execution]] = {}

    @property
    def own(self) -> Mapping[Place, float]:
        """What each op takes alone."""
        return self.engine.seconds

    def seconds(self, chosen: Chosen) -> float:
        """Return the end of the slowest ranks."""
        asked = tuple(candidate for _, candidate in chosen)
        if asked not in self._found:
            self._found[asked] = self.run(chosen).seconds
        return self._found[asked]

    def run(self, chosen: Chosen = ()) -> StepRun:
        """Run the step with the chosen candidates."""
        executions: dict[Place, Execution] = {}
        seconds: dict[Place, float] = {}
        for group, candidate in chosen:
            executions |= self._executions(group, candidate)
            seconds |= dict.fromkeys(candidate.replaced, 0.0)
            if candidate.slices:
                seconds |= {p: self.own[p] * candidate.producer for p in group.producers}
        return self.engine.run(executions, seconds)

    def _executions(
        self, group: CollectiveGroup, candidate: Candidate
    ) -> Mapping[Place, Execution]:
        """Return what the engine runs for each member; those that take as long share one value."""
        key = group.members[0], candidate
        if key not in self._known:
            by_share: dict[float, Execution] = {}
            made = self._known[key] = {}
            for place in group.members:
                # Members of a recorded step took different times for equal bytes; a candidate
                # keeps the ratio of each to the price of the group.
                share = self.own[place] / group.alone if group.alone else 1.0
                if share not in by_share:
                    by_share[share] = self._execution(group, candidate, share)
                made[place] = by_share[share]
        return self._known[key]

    def _execution(self, group: CollectiveGroup, candidate: Candidate, share: float) -> Execution:
        """Return what the engine runs: ``share`` is what was recorded over the group's price."""
        took = share * candidate.alone.seconds
        if candidate.slices and group.producers:
            # In slices, all but the first can be sent while the producer still runs, as long as it
            # runs.
            took -= min(group.producer_seconds, took) * (1 - 1 / candidate.slices)
        # Holding all units keeps every kernel out, which is what exclusive means.
        units = self.engine.device.units if candidate.exclusive else candidate.units
        kind = candidate.strategy.kind
        return Execution(took, units, kind.by_engines, kind.first)

    def overlap(self, run: StepRun) -> Overlap:
        """Find which kernels ran while which collectives did."""
        share: dict[Place, float] = {}
        kernels: dict[Place, dict[int, float]] = defaultdict(dict)
        for c, step in enumerate(self.graph.steps):
            numbers, start, end = self._laid(run, c)
            for n, op in enumerate(step.ops):
                if op.collective is None or op.stream == self._main[c]:
                    continue
                # Kernels of the main stream do not overlap each other, so their ends are sorted as
                # well.
                begin, until = run.span((c, n))
                first = int(np.searchsorted(end, begin, side="right"))
                last = int(np.searchsorted(start, until, side="left"))
                over = np.minimum(end[first:last], until) - np.maximum(start[first:last], begin)
                total = float(over.sum()) if last > first else 0.0
                share[c, n] = min(1.0, total / max(until - begin, 1e-12))
                kernels[c, n] = dict(zip(numbers[first:last], over.tolist(), strict=True))
        return Overlap(share, kernels)

    def kernel_seconds(self, run: StepRun) -> float:
        """Return how long kernels of the main stream take together, in the class that ends last."""
        ends, took = [], []
        for c in range(len(self.graph.steps)):
            _, start, end = self._laid(run, c)
            ends.append(float(end.max(initial=0.0)))
            took.append(float((end - start).sum()))
        return took[ends.index(max(ends))]

    def _laid(self, run: StepRun, c: int) -> tuple[list[int], Floats, Floats]:
        """Return the kernels of the main stream in order, with their starts and ends."""
        ops = self.graph.steps[c].ops
        mine = [
            n
            for n, op in enumerate(ops)
            if op.stream == self._main[c] and op.collective is None and op.kind != "host"
        ]
        spans = np.array([run.span((c, n)) for n in mine]).reshape(-1, 2)
        return mine, spans[:, 0], spans[:, 1]

    def slowdown(self, run: StepRun, group: CollectiveGroup) -> float:
        """Return how many times as long kernels take next to a group as alone, in a run."""
        overlap, launch = self.overlap(run), self.engine.device.launch
        took = alone = 0.0
        for place in group.members:
            for number, seconds in overlap.kernels.get(place, {}).items():
                start, end = run.span((place[0], number))
                own = max(self.own[place[0], number], launch)
                took += seconds
                # What the overlapped part of the kernel would have taken alone.
                alone += seconds * own / max(end - start, 1e-12)
        return max(1.0, took / alone) if alone else 1.0


def _main_stream(ops: Sequence[Op]) -> str:
    """Return the stream of the kernels: the one with most of them."""
    count = Counter(op.stream for op in ops if op.kind == "kernel")
    return max(count, key=lambda name: count[name], default="compute")
