"""The seconds of a whole step when its collectives are carried out in chosen ways.

The step is walked through, as ``predict`` does. A way changes how long its collective takes and,
as far as the two overlap, how long kernels beside it take. Overlap is found by walking, so the
walk is repeated with what the last one found.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from weft.planner.beside import ROUNDS, stretched
from weft.workload.lower import seconds_of
from weft.workload.step import Op, Step
from weft.workload.walk import walked

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from weft.hardware import Platform
    from weft.planner.prices import Prices
    from weft.planner.ways import Pair, Way
    from weft.workload import HostModel, Workload
    from weft.workload.walk import Met, Walker

    Floats = NDArray[np.float64]
    Ways = Sequence[tuple[Pair, Way]]

Place = tuple[int, int]  # class of ranks, number of the op


@dataclass(frozen=True, slots=True)
class Overlap:
    """How a walk laid ops: of each kernel and collective the share that ran beside the other."""

    share: dict[Place, float]
    beside: dict[Place, dict[int, float]]  # by collective, seconds of each kernel


class StepPricer:
    """Prices one step again and again."""

    def __init__(
        self,
        workload: Workload,
        platform: Platform,
        prices: Prices,
        met: Met,
        host: HostModel | None = None,
    ) -> None:
        self.workload, self.platform, self.prices = workload, platform, prices
        self.met, self.host = met, host
        self.own: dict[Place, float] = {
            (c, n): seconds_of(op, met.get((c, n)), prices)
            for c, step in enumerate(workload.steps)
            for n, op in enumerate(step.ops)
            if op.kind != "host"
        }
        self.main = [_main_stream(step.ops) for step in workload.steps]
        self.timed = [
            [
                _timed(op, self.own.get((c, n), op.seconds), op.stream)
                for n, op in enumerate(step.ops)
            ]
            for c, step in enumerate(workload.steps)
        ]
        self.neighbours = {
            (c, n): (before, behind)
            for c, step in enumerate(workload.steps)
            for n, before, behind in _neighbours(step.ops)
        }
        self._found: dict[tuple[Way, ...], float] = {}

    def seconds(self, ways: Ways) -> float:
        """Give the end of the slowest ranks; what was asked before is remembered."""
        asked = tuple(way for _, way in ways)
        if asked not in self._found:
            self._found[asked] = max(walker.end for walker in self.walk(ways))
        return self._found[asked]

    def walk(self, ways: Ways) -> list[Walker]:
        """Walk through the step as often as overlap asks for."""
        chosen = {place: way for pair, way in ways for place in pair.members}
        seconds = self._alone(ways)
        walkers = self._walked(chosen, seconds)
        if all(way.beside == way.compute == 1.0 and way.pair is None for _, way in ways):
            return walkers
        for _ in range(ROUNDS):
            overlap = self.overlap(walkers)
            walkers = self._walked(chosen, self._beside(chosen, seconds, overlap))
        return walkers

    def _alone(self, ways: Ways) -> dict[Place, float]:
        """Give the seconds of all ops as if nothing ran beside anything."""
        seconds = dict(self.own)
        for pair, way in ways:
            took = way.alone.seconds
            if way.slices and pair.makers:
                took -= min(pair.making, took) * (1 - 1 / way.slices)
                for maker in pair.makers:
                    seconds[maker] = self.own[maker] * way.producer
            seconds |= dict.fromkeys(pair.members, took)
            seconds |= dict.fromkeys(way.freed, 0.0)
        return seconds

    def _beside(
        self, chosen: Mapping[Place, Way], seconds: Mapping[Place, float], overlap: Overlap
    ) -> dict[Place, float]:
        """Stretch both sides by the share in which they overlap.

        Where the pair itself was priced, the product ends with it.
        """
        out = dict(seconds)
        for place, way in chosen.items():
            mine = overlap.beside.get(place)
            if way.pair is not None and mine:
                out[place[0], max(mine, key=lambda n: mine[n])] = way.pair
                out[place] = min(out[place], way.pair)
                continue
            out[place] *= 1 + overlap.share.get(place, 0.0) * (way.beside - 1)
            if way.compute == 1.0:
                continue
            for kernel, over in (mine or {}).items():
                at = place[0], kernel
                out[at] += stretched(over, way.compute)
        return out

    def _walked(self, chosen: Mapping[Place, Way], seconds: Mapping[Place, float]) -> list[Walker]:
        ops = [list(each) for each in self.timed]
        for place, took in seconds.items():
            c, n = place
            if took != self.own[place]:
                ops[c][n] = _timed(ops[c][n], took, ops[c][n].stream)
        for place, way in chosen.items():
            if way.serial:
                self._in_turn(ops[place[0]], place)
        steps = tuple(
            Step(step.ranks, tuple(each))
            for step, each in zip(self.workload.steps, ops, strict=True)
        )
        changed = replace(self.workload, steps=steps)
        return walked(changed, self.platform, self.prices, host=self.host, met=self.met)

    def _in_turn(self, ops: list[Op], place: Place) -> None:
        """Put a collective on the stream of the kernels; it keeps its place among its like."""
        stream, number = self.main[place[0]], place[1]
        own = ops[number]
        before, behind = self.neighbours[place]
        ops[number] = _timed(own, own.seconds, stream, (*own.after, *before))
        for n in behind:
            ops[n] = _timed(ops[n], ops[n].seconds, ops[n].stream, (*ops[n].after, number))

    def overlap(self, walkers: Sequence[Walker]) -> Overlap:
        """Find which kernels ran while which collectives did."""
        share: dict[Place, float] = {}
        beside: dict[Place, dict[int, float]] = defaultdict(dict)
        for c, walker in enumerate(walkers):
            kernels, start, end = _laid(walker, self.main[c])
            for n, op in enumerate(walker.step.ops):
                if op.collective is None or op.stream == self.main[c]:
                    continue
                begin, until = walker.starts[n][1], walker.ends[n]
                first = int(np.searchsorted(end, begin, side="right"))
                last = int(np.searchsorted(start, until, side="left"))
                over = np.minimum(end[first:last], until) - np.maximum(start[first:last], begin)
                total = float(over.sum()) if last > first else 0.0
                share[c, n] = min(1.0, total / max(until - begin, 1e-12))
                beside[c, n] = dict(zip(kernels[first:last], over.tolist(), strict=True))
        return Overlap(share, beside)


def _timed(op: Op, seconds: float | None, stream: str, after: tuple[int, ...] | None = None) -> Op:
    """Give an op with other seconds; ``replace`` takes ten times as long."""
    return Op(
        op.name,
        op.kind,
        stream,
        op.cost,
        op.collective,
        op.after if after is None else after,
        op.host,
        op.blocking,
        seconds,
        op.phase,
    )


def _neighbours(ops: Sequence[Op]) -> Iterator[tuple[int, list[int], list[int]]]:
    """Give each collective with those right before and behind it on its stream, if any."""
    streams: dict[str, list[int]] = defaultdict(list)
    for number, op in enumerate(ops):
        if op.collective is not None:
            streams[op.stream].append(number)
    for mine in streams.values():
        for place, number in enumerate(mine):
            yield number, mine[max(0, place - 1) : place], mine[place + 1 : place + 2]


def _main_stream(ops: Sequence[Op]) -> str:
    """Name the stream of the kernels: the one with most of them."""
    count = Counter(op.stream for op in ops if op.kind == "kernel")
    return max(count, key=lambda name: count[name], default="compute")


def _laid(walker: Walker, stream: str) -> tuple[list[int], Floats, Floats]:
    """Give the kernels of a stream in order, with their starts and ends."""
    ops = walker.step.ops
    mine = [n for n in walker.starts if ops[n].stream == stream and ops[n].collective is None]
    mine.sort(key=lambda n: walker.starts[n][1])
    start = np.array([walker.starts[n][1] for n in mine])
    return mine, start, np.array([walker.ends[n] for n in mine])
