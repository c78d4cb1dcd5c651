"""Host overheads around operators and launches: T1 to T5 of arXiv 2201.07821.

Operators here are outermost ones. Of those that launch something: *between* (T1) is the pause since
the previous operator on its thread, *before* (T2) from its start to its first launch, *after* (T3)
from its last launch to its end, *launch* (T4) one launching call, *inside* (T5) from one to the
next. Means exclude the longest twentieth, in which the host was interrupted or waited.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import numpy as np

from weft.hardware.recorded_device import Overheads
from weft.trace.trace import EventKind, Ints, Trace

PAUSES = ("between", "before", "after", "launch", "inside")  # T1 to T5
_FEWEST = 5  # operators of a kind before it gets its own entry
_MOST_KINDS = 40
_LONGEST = 1e-3  # seconds: a longer pause is not overhead


class _OperatorTimes:
    """Observed times of one kind of operator."""

    def __init__(self) -> None:
        self.count = 0
        self.times: dict[str, list[float]] = defaultdict(list)

    def add(self, **times: Sequence[float]) -> None:
        self.count += 1
        for name, values in times.items():
            self.times[name] += [value for value in values if value >= 0]

    def mean(self) -> Overheads:
        return Overheads(self.count, **{name: _mean(self.times[name]) for name in PAUSES})


def _mean(values: Sequence[float]) -> float:
    kept = sorted(values)[: max(1, round(0.95 * len(values)))] if values else []
    return fmean(kept) if kept else 0.0


def overheads_of(traces: Sequence[Trace]) -> dict[str, Overheads]:
    """Return the overheads by operator name, for the most frequent ones, and of ``all``."""
    seen: dict[str, _OperatorTimes] = defaultdict(_OperatorTimes)
    for trace in traces:
        _look(trace, seen)
    common = sorted(seen, key=lambda kind: -seen[kind].count)[: _MOST_KINDS + 1]
    return {kind: seen[kind].mean() for kind in common if seen[kind].count >= _FEWEST}


def _look(trace: Trace, seen: dict[str, _OperatorTimes]) -> None:
    start, end = trace.columns.start, trace.end
    launches = np.unique(trace.launch[trace.gpu])
    launches = launches[launches >= 0]
    if not len(launches):
        return
    outer = _outermost(trace)
    inside: dict[int, list[int]] = defaultdict(list)
    for row in launches[np.argsort(start[launches], kind="stable")].tolist():
        inside[int(outer[row])].append(row)
    pauses = _pauses(trace, outer)
    for op, calls in inside.items():
        if op < 0:
            continue
        times = {
            "between": [pauses[op]] if op in pauses else [],
            "before": [float(start[calls[0]] - start[op])],
            "after": [float(end[op] - end[calls[-1]])],
            "launch": [float(trace.columns.duration[row]) for row in calls],
            "inside": [float(start[b] - end[a]) for a, b in pairwise(calls)],
        }
        for kind in ("all", trace.name_of(op)):
            seen[kind].add(**times)


def _outermost(trace: Trace) -> Ints:
    """Return for every row the outermost operator around it or itself, or -1.

    Pointer jumping: each round looks twice as far up, so a million nested rows take twenty rounds.
    """
    above = trace.parent.astype(np.int64)
    outer = np.where(trace.columns.kind == EventKind.OP, np.arange(len(above)), -1)
    while (has := above >= 0).any():
        outer = np.where(has & (outer[above] >= 0), outer[above], outer)
        above = np.where(has, above[above], -1)
    return outer


def _pauses(trace: Trace, outer: Ints) -> dict[int, float]:
    """Return the pause between each outermost operator and the previous one on its thread."""
    ops = np.unique(outer[outer >= 0])
    order = ops[np.lexsort((trace.columns.start[ops], trace.columns.thread[ops]))]
    pause = trace.columns.start[order[1:]] - trace.end[order[:-1]]
    same = trace.columns.thread[order[1:]] == trace.columns.thread[order[:-1]]
    good = same & (pause >= 0) & (pause < _LONGEST)
    return dict(zip(order[1:][good].tolist(), pause[good].tolist(), strict=True))
