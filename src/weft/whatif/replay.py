"""Replay: a recorded step put together again and simulated, compared with what was measured.

A step is replayed with the durations of its own kernels. How it is put together, what waits for
what and what the host takes come from the other steps of the trace, those that ask for the same if
there are any. So the error of a replay says what a changed replay is worth. With one recorded step
all comes from it, which is said.

What is measured is the period of a step: the host's, or the device's where the host runs ahead.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from weft.errors import FormatError, ReplayError
from weft.hardware import Platform, platform
from weft.schedule import Cost
from weft.step import NO_HOST, Collective, Op, StepEngine, StepGraph, StepRun
from weft.trace import Trace, read
from weft.trace import TracedCollective as RecordedCollective
from weft.trace.analysis.align import RankTrace
from weft.trace.analysis.machine_links import links_of, sized
from weft.trace.analysis.steps import steps_of
from weft.trace.recorded.calls import Calls, Ints, calls_of, stand_apart
from weft.trace.recorded.order import order_of
from weft.trace.recorded.overheads import overheads_of
from weft.trace.recorded.recorded_step import MARK, RecordedStep, graph_of, repeated, seconds_like

MOST_ERROR = 0.15  # recorded jobs are replayed within 7 %: beyond twice that a replay misses
# something that matters, and so does every change made to it
# The first iteration starts on an idle device, so the period is that of the last.
ITERATIONS = 3  # the third begins as the second did
_BEHIND = 0.1  # of a period: a device so far behind its host sets the pace
_AHEAD = 1.05  # periods of the device over those of the host: more, and the host runs ahead
_STRANGER = "a100-8"  # a device that the catalogue does not have runs opaque kernels as well


@dataclass(frozen=True, slots=True)
class Replay:
    """One step: its period as measured and as simulated, in seconds."""

    name: str
    measured: float
    simulated: float
    held_out: bool  # its structure and host come from other steps alone
    by_device: bool  # the measured period is that of the device, which runs behind the host

    @property
    def error(self) -> float:
        """How much longer the replay is, as a share of what was measured."""
        return self.simulated / self.measured - 1


def recorded_steps(ranked: RankTrace) -> list[RecordedStep]:
    """Return every step of a trace, ready to be replayed."""
    trace, steps = ranked.trace, calls_of(ranked.trace)
    if not steps:
        raise FormatError(
            f"nothing to replay: {trace.path!r} has no GPU work with a recorded launch",
            "Record with ProfilerActivity.CPU and ProfilerActivity.CUDA.",
        )
    known = {each.row: each for each in ranked.collectives}
    periods = measured_periods(trace, steps)
    found = [number for number, period in enumerate(periods) if period.seconds > 0]
    if not found:
        raise FormatError(
            f"{trace.path!r}: its {len(steps)} steps take no time, so there is nothing to replay",
            "The profiler's clock stood still; record again.",
        )
    return [_recorded(steps, number, periods[number], known) for number in found]


def _recorded(
    steps: Sequence[Calls], number: int, period: Period, known: dict[int, RecordedCollective]
) -> RecordedStep:
    others = [step for index, step in enumerate(steps) if index != number]
    same = [step for step in others if step.signature == steps[number].signature]
    # Held out: structure and overheads from other steps, so that the error is that of a
    # prediction.
    model = same or _alike(others) or [steps[number]]
    order = order_of(model)
    rows = enumerate(model[0].row.tolist())
    return RecordedStep(
        name=steps[number].mark.name,
        calls=model[0],
        order=order,
        overheads=overheads_of(model, order),
        seconds=seconds_like(model[0], steps[number]),
        collectives={call: known[row] for call, row in rows if row in known},
        measured=period.seconds,
        held_out=bool(others),
        by_device=period.by_device,
        # How long the device goes on after the period: it runs behind the host by that.
        lag=max(0.0, _ended(steps[number]) - steps[number].mark.start - period.seconds),
    )


def _alike(steps: Sequence[Calls]) -> list[Calls]:
    """Return the steps that ask for what most of them ask for."""
    if not steps:
        return []
    most = Counter(step.signature for step in steps).most_common(1)[0][0]
    return [step for step in steps if step.signature == most]


class Period(NamedTuple):
    """How long a step took, and whether that is the period of the device."""

    seconds: float
    by_device: bool


def measured_periods(trace: Trace, steps: Sequence[Calls]) -> list[Period]:
    """Return the period of each step: the host's, or the device's where the host runs ahead.

    A host that runs ahead has steps that say nothing: they are as long as it takes to launch, or
    to wait for room in a queue.
    """
    if len(steps) == 1:
        return [_alone(steps[0])]
    host = [
        (step.mark.end if np.isnan(step.until) else step.until) - step.mark.start for step in steps
    ]
    found = steps_of(trace)
    device = dict(zip((mark.name for mark in found.marks), found.periods, strict=True))
    known = [(mine, theirs) for mine, step in zip(host, steps, strict=True)
             if (theirs := device.get(step.mark.name)) is not None]  # fmt: skip
    # A wait for the device in one step, as the profiler's own when it stops, does not make a host
    # that is ahead in most of them the one that sets the pace.
    lags = [step.lag / mine for step, mine in zip(steps, host, strict=True)]
    ahead = sum(d for _, d in known) > _AHEAD * sum(h for h, _ in known)
    if min(lags) < _BEHIND and not (ahead and median(lags) >= _BEHIND):
        if np.isnan(steps[-1].until) and stand_apart(steps):
            host[-1] = 0.0  # the start of the step after the last is unknown
        return [Period(seconds, by_device=False) for seconds in host]
    last = _ended(steps[-1]) - _ended(steps[-2])
    periods = [device.get(step.mark.name) for step in steps[:-1]] + [last]
    return [
        Period(theirs, by_device=True) if theirs and theirs > 0 else Period(mine, by_device=False)
        for mine, theirs in zip(host, periods, strict=True)  # clocks may stand still
    ]


def _alone(step: Calls) -> Period:
    """Return the period of the only step that launched something.

    It lasts until the next mark, or as long as its own; or as long as its busiest stream took.
    """
    longest, span = 0.0, 0.0
    own = step.own_launches
    for stream in np.unique(step.stream[own]).tolist():
        mine = own[step.stream[own] == stream]
        busy = float(step.seconds[mine].sum())
        if busy > longest:
            longest = busy
            span = float(step.gpu_end[mine].max() - step.gpu_start[mine].min())
    wall = (step.mark.end if np.isnan(step.until) else step.until) - step.mark.start
    # A single step has no next one to measure to; a stream that is busy for longer than the host's
    # mark says that the host had run ahead.
    return Period(span, by_device=True) if longest > wall else Period(wall, by_device=False)


def _ended(step: Calls) -> float:
    return float(np.nanmax(step.gpu_end))


def replay_error(replays: Sequence[Replay]) -> float:
    """Return how much longer the replay of all steps is than they were, as a share."""
    return sum(each.simulated for each in replays) / sum(each.measured for each in replays) - 1


def doubt(replays: Sequence[Replay]) -> str:
    """Return why nothing should be concluded from a replay, or "" if it is close enough.

    Both count: how far off all steps are together, and how far off the median step is.
    """
    together = replay_error(replays)
    each = float(np.median([abs(one.error) for one in replays]))
    if max(abs(together), each) <= MOST_ERROR:
        return ""
    # Errors of opposite sign cancel in the sum; the median step shows them.
    figure = f"{together:+.1%}" if abs(together) >= each else f"{each:.1%} (the median step)"
    return f"the replay is off by {figure}, more than {MOST_ERROR:.0%}"


def require_close(path: str, replays: Sequence[Replay]) -> None:
    """Raise if a replay is too far from what was measured for anything to rest on it."""
    why = doubt(replays)
    if why:
        raise ReplayError(
            f"{path}: {why}, so what it predicts of a change is unreliable",
            "Record several steps of every rank with ProfilerActivity.CPU and .CUDA, or use "
            "--anyway (anyway=True).",
        )


def replay(trace: Trace | Path | str) -> list[Replay]:
    """Replay every step of a trace, or of its file."""
    found = trace if isinstance(trace, Trace) else read(trace)
    return replays_of(recorded_steps(RankTrace.of(found)), machine_of(found))


def replays_of(steps: Sequence[RecordedStep], machine: Platform) -> list[Replay]:
    """Replay steps one by one, each op with the duration that was recorded."""
    out = []
    for step in steps:
        seconds = replay_engine([step], machine).run(pressure=0).seconds
        out.append(Replay(step.name, step.measured, seconds, step.held_out, step.by_device))
    return out


def machine_of(trace: Trace) -> Platform:
    """Return the platform of the traced device, by its name."""
    return links_of(trace.device).machine or platform(_STRANGER)


def replay_engine(
    ranks: Sequence[RecordedStep], machine: Platform, graph: StepGraph | None = None
) -> StepEngine:
    """Lay out recorded ranks, or a changed ``workload`` of them, for several iterations."""
    gap = max(rank.overheads.gap for rank in ranks)
    sized = replay_machine(machine, gap, ranks)
    if graph is None:
        graph = graph_of("replay", ranks, machine.require_device())
    count = iterations_of(ranks)
    whole = repeated(graph, count, [rank.late for rank in ranks])
    period = _PeriodOf(tuple(rank.lag for rank in ranks))
    return StepEngine(whole, sized, KnownPrices(), host=NO_HOST, period=period)


def iterations_of(ranks: Sequence[RecordedStep]) -> int:
    """Return how many iterations show the period; a step alone has nothing before or after it."""
    return ITERATIONS if all(rank.held_out for rank in ranks) else 1


def replay_machine(machine: Platform, gap: float, ranks: Sequence[RecordedStep] = ()) -> Platform:
    """Return a machine that adds nothing but the gap between kernels to what was recorded.

    It has as many ranks as the largest group that was recorded.
    """
    device = machine.require_device()
    dma = None if device.dma is None else replace(device.dma, sync=0.0)
    # Recorded durations and gaps already contain launches, signals and synchronization.
    device = replace(device, launch=gap, host_launch=0.0, signal=0.0, dma=dma, shared=None)
    sizes = (what.num_ranks or 1 for rank in ranks for what in rank.collectives.values())
    return replace(sized(machine, max(len(ranks), 1, *sizes)), device=device)


class KnownPrices:
    """Prices of a workload that has them all."""

    def kernel(self, cost: Cost) -> float:
        """Raise: every kernel was recorded."""
        raise AssertionError(cost)

    def collective(self, what: Collective, ranks: tuple[int, ...]) -> float:
        """Raise: every collective was recorded."""
        raise AssertionError((what, ranks))


class _PeriodOf:
    """How far apart iterations of recorded ranks begin in a run: that of the slowest."""

    def __init__(self, lags: Sequence[float]) -> None:
        self._lags = lags
        self._known: tuple[object, list[tuple[Ints, list[Ints]]]] = None, []

    def __call__(self, run: StepRun) -> float:
        return max(self.of_rank(run, rank) for rank in range(len(self._lags)))

    def of_rank(self, run: StepRun, rank: int) -> float:
        """Return the period of the last iteration: the host's, or the device's if longer."""
        marks, iterations = self._rows(run)[rank]
        begins = run.row_start[marks]
        host = float(begins[-1] - begins[-2])
        ends = [float(run.row_end[rows].max(initial=0.0)) for rows in iterations[-2:]]
        if len(ends) > 1:
            return max(host, ends[1] - ends[0])
        # The device outlives the step by as much as it did when recorded.
        return max(host, ends[0] - float(begins[-2]) - self._lags[rank], _busiest(run, rank))

    def _rows(self, run: StepRun) -> list[tuple[Ints, list[Ints]]]:
        """Return by rank the rows of its marks, and those of what each iteration launches."""
        layout = run.engine.layout
        if self._known[0] is not layout:
            found = []
            for number, step in enumerate(run.engine.graph.steps):
                marks = [n for n, op in enumerate(step.ops) if _is_mark(op)]
                rows = [
                    np.array([layout.row[number, n] for n in range(first, last)
                              if (number, n) in layout.row], np.int64)
                    for first, last in pairwise(marks)
                ]  # fmt: skip
                found.append((np.array([layout.issue_row[number, n] for n in marks]), rows))
            self._known = layout, found
        return self._known[1]


def _is_mark(op: Op) -> bool:
    return op.kind == "host" and op.name == MARK


def _busiest(run: StepRun, rank: int) -> float:
    """Return how long the busiest stream works on what the step itself launched."""
    ops = run.engine.graph.steps[rank].ops
    first = next(n for n, op in enumerate(ops) if _is_mark(op))
    busy: dict[str, float] = defaultdict(float)
    for n in range(first, len(ops)):
        if ops[n].kind != "host":
            start, end = run.span((rank, n))
            busy[ops[n].stream] += end - start
    return max(busy.values(), default=0.0)


def rank_periods(run: StepRun) -> list[float]:
    """Return the period of each rank of a replay."""
    assert isinstance(run.engine.period, _PeriodOf)
    return [run.engine.period.of_rank(run, n) for n in range(len(run.engine.graph.steps))]
