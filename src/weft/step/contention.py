"""Which ops of a run took longer than alone, next to what, and which resource they shared."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.schedule import Cost

if TYPE_CHECKING:
    from weft.step.engine import StepEngine
    from weft.step.layout import Place
    from weft.step.run import StepRun

_LEAST = 1e-7  # seconds: less is rounding


@dataclass(frozen=True, slots=True)
class Contention:
    """Seconds that ops of one name lost next to ops of another, and what both wanted."""

    name: str
    next_to: str
    resource: str
    count: int
    seconds: float

    def as_row(self) -> dict[str, Any]:
        """Return it under the keys that ``weft predict`` has."""
        return {
            "name": self.name,
            "next_to": self.next_to,
            "resource": self.resource,
            "count": self.count,
            "seconds": self.seconds,
        }


def contention(run: StepRun, number: int) -> tuple[Contention, ...]:
    """Return what ops of a class of ranks lost, the most first."""
    engine = run.engine
    places = [place for place in engine.layout.row if place[0] == number]
    spans = np.array([run.span(place) for place in places]).reshape(-1, 2)
    alone = np.array([max(engine.seconds[place], engine.device.launch) for place in places])
    lost = spans[:, 1] - spans[:, 0] - alone
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    order = np.argsort(spans[:, 0], kind="stable")
    starts = spans[order, 0]
    longest = float((spans[:, 1] - spans[:, 0]).max(initial=0.0))
    for mine in np.flatnonzero(lost > _LEAST).tolist():
        begin, end = spans[mine]
        first = np.searchsorted(starts, begin - longest)
        last = np.searchsorted(starts, end)
        near = order[first:last]
        over = np.minimum(spans[near, 1], end) - np.maximum(spans[near, 0], begin)
        over[near == mine] = 0.0
        if not len(over) or over.max() <= 0:
            continue
        other = int(near[int(over.argmax())])
        key = (
            engine.op(places[mine]).name,
            engine.op(places[other]).name,
            _shared(engine, places[mine], places[other]),
        )
        found[key].append(float(lost[mine]))
    rows = (Contention(*key, len(each), sum(each)) for key, each in found.items())
    return tuple(sorted(rows, key=lambda row: -row.seconds))


def _shared(engine: StepEngine, mine: Place, other: Place) -> str:
    """Return the resource that two ops both want most of; units of a collective are its own."""
    if engine.op(mine).collective is not None:
        between = engine.op(other).collective is not None
        return "links" if between else "memory and caches"
    memory = sum(_memory(engine, place) for place in (mine, other))
    units = sum(_units(engine, place) for place in (mine, other))
    return "compute units" if units >= memory else "memory bandwidth"


def _memory(engine: StepEngine, place: Place) -> float:
    """Return the share of the memory's rate that an op wants alone."""
    op, seconds = engine.op(place), engine.own(engine.seconds[place])
    if op.collective is not None:
        flow, _ = engine.collective_flow(place)
        return flow.memory * flow.cap / engine.device.memory_rate
    cost = op.cost or Cost()
    return min(1.0, cost.nbytes / seconds / engine.device.memory_rate)


def _units(engine: StepEngine, place: Place) -> float:
    """Return the share of the units that an op wants alone."""
    op, seconds = engine.op(place), engine.own(engine.seconds[place])
    if op.collective is not None:
        _, moved_by = engine.collective_flow(place)
        return moved_by.held / engine.device.units
    flow, tiles = engine.demands.kernel(op.cost or Cost(), seconds)
    return 1.0 if tiles is not None else flow.units * flow.cap / engine.device.units
