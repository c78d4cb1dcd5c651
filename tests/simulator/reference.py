"""Max-min fairness written as its definition says, one step at a time, to compare with."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass
class Flow:
    """Weights by resource; never faster than its cap."""

    weights: dict[int, float]
    cap: float = inf


def fill(flows: list[Flow], capacity: list[float]) -> list[float]:
    """All rates rise together; a flow that meets a full resource or its cap stops there."""
    rates = [0.0] * len(flows)
    rising = set(range(len(flows)))
    left = list(capacity)
    level = 0.0
    while rising:
        load = [0.0] * len(capacity)
        for f in rising:
            for r, weight in flows[f].weights.items():
                load[r] += weight
        steps = [left[r] / load[r] if load[r] else inf for r in range(len(capacity))]
        by_cap = min(flows[f].cap for f in rising) - level
        step = min([*steps, by_cap])
        if step == inf:
            break
        level += step
        full = {r for r in range(len(capacity)) if steps[r] <= step * (1 + 1e-12)}
        left = [0.0 if r in full else left[r] - step * load[r] for r in range(len(capacity))]
        stopping = {
            f
            for f in rising
            if full & flows[f].weights.keys() or flows[f].cap <= level * (1 + 1e-12)
        }
        for f in stopping:
            rates[f] = level
        rising -= stopping
    for f in rising:
        rates[f] = inf
    return rates


@dataclass
class Send:
    """A flow of ``left`` bytes, which may start when ``after`` has ended."""

    flow: Flow
    left: float
    after: int | None = None


def finish_times(sends: list[Send], capacity: list[float]) -> list[float]:
    """When each send ends: between two ends nothing changes, at each all rates are new."""
    ends: list[float | None] = [None] * len(sends)
    left = [send.left for send in sends]
    now = 0.0
    while None in ends:
        active = [
            i
            for i, send in enumerate(sends)
            if ends[i] is None and (send.after is None or ends[send.after] is not None)
        ]
        rates = fill([sends[i].flow for i in active], capacity)
        step = min(left[i] / rate for i, rate in zip(active, rates, strict=True))
        now += step
        for i, rate in zip(active, rates, strict=True):
            left[i] -= step * rate
            if left[i] <= 1e-9 * sends[i].left:
                ends[i] = now
    return [end for end in ends if end is not None]
