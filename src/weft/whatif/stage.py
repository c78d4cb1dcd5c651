"""Recorded steps on the step engine, laid out once and replayed again and again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from weft.step import StepEngine, StepRun
from weft.whatif.recorded import MARK, workload_of
from weft.workload import NO_HOST

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from weft.hardware import Platform
    from weft.timeline import Timeline
    from weft.whatif.calls import Floats, Ints
    from weft.whatif.recorded import Recording
    from weft.workload import Collective

ITERATIONS = 3  # the third begins as the second did


class Stage:
    """The recordings of some ranks as one step. What the device adds is the gap alone."""

    def __init__(
        self, ranks: Sequence[Recording], machine: Platform, iterations: int = ITERATIONS
    ) -> None:
        self.ranks, self.machine, self.iterations = tuple(ranks), machine, iterations
        gap = max(rank.overheads.gap for rank in ranks)
        units = machine.require_device().units
        workload = workload_of("replay", ranks, units, iterations)
        quiet = quiet_machine(machine, gap)
        self._engine = StepEngine(workload, quiet, _Known(), host=NO_HOST)
        layout = self._engine.layout
        flows = [self._rows(number, layout.row) for number in range(len(ranks))]
        self._flows = flows
        self.rows = [
            self._rows(number, {**layout.row, **layout.launch_row}) for number in range(len(ranks))
        ]
        self._marks = [
            np.array(
                [
                    layout.issue_row[number, n]
                    for n, op in enumerate(step.ops)
                    if op.kind == "host" and op.name == MARK
                ]
            )
            for number, step in enumerate(workload.steps)
        ]

    def _rows(self, number: int, row: dict[tuple[int, int], int]) -> Ints:
        """Return the row of each launch, by iteration and call; -1 for calls without one."""
        calls = self.ranks[number].calls
        out = np.full((self.iterations, len(calls)), -1)
        ops = self._engine.workload.steps[number].ops
        for stream in {op.stream for op in ops if op.kind != "host"}:
            mine = calls.launches[calls.stream[calls.launches] == int(stream)]
            found = [
                row[number, n]
                for n, op in enumerate(ops)
                if op.kind != "host" and op.stream == stream
            ]
            out[:, mine] = np.array(found).reshape(self.iterations, len(mine))
        return out

    def run(self, ranks: Sequence[Recording] | None = None, first: Collection[str] = ()) -> Run:
        """Replay it with the seconds of ``ranks``; streams named in ``first`` go first."""
        ranks = ranks or self.ranks
        flows, rows, seconds, waves, pauses = [], [], [], [], []
        for number, rank in enumerate(ranks):
            mine = rank.calls.launches
            flows.append(self._flows[number][:, mine].reshape(-1))
            rows.append(self.rows[number][:, mine].reshape(-1))
            pauses.append(np.tile(rank.overheads.pauses[mine], self.iterations))
            seconds.append(np.tile(rank.seconds[mine], self.iterations) + pauses[-1])
            waves.append(np.tile(rank.calls.waves[mine], self.iterations))
        higher = [
            (number, stream)
            for number, streams in enumerate(self._engine.layout.streams)
            for stream in streams
            if stream in first
        ]
        found = self._engine.replay(
            np.concatenate(flows), np.concatenate(seconds), np.concatenate(waves), higher
        )
        start = found.row_start
        start[np.concatenate(rows)] += np.concatenate(pauses)  # the stream idles until then
        return Run(self, start, found.row_end)

    def timeline(self, start: Floats, end: Floats) -> Timeline:
        """Return a run as a Timeline."""
        return StepRun(self._engine, start, end).timeline()

    def marks(self, number: int) -> Ints:
        """Return the rows of a rank at which iterations begin, and that of the end of the last."""
        return self._marks[number]


class Run:
    """One run of a Stage."""

    def __init__(self, stage: Stage, start: Floats, end: Floats) -> None:
        self.stage, self.start, self.end = stage, start, end

    def period(self, rank: int = 0) -> float:
        """Give the period of the last iteration: the host's or the device's, if that is longer."""
        marks = self.start[self.stage.marks(rank)]
        host = float(marks[-1] - marks[-2])
        rows = self.stage.rows[rank]
        if len(rows) < 2:  # the device outlives the step by as much as it did when recorded
            ended = float(self.end[rows[rows >= 0]].max() - marks[-2])
            return max(host, ended - self.stage.ranks[rank].lag, self._busiest(rank))
        ends = [float(self.end[row[row >= 0]].max()) for row in rows[-2:]]
        return max(host, ends[1] - ends[0])

    def _busiest(self, rank: int) -> float:
        """Return how long the busiest stream works on what the step launched."""
        calls, (row,) = self.stage.ranks[rank].calls, self.stage.rows[rank]
        mine = calls.own_launches
        seconds, stream = (self.end - self.start)[row[mine]], calls.stream[mine]
        return max((float(seconds[stream == s].sum()) for s in np.unique(stream)), default=0.0)

    @property
    def step(self) -> float:
        """The period of the slowest rank."""
        return max(self.period(rank) for rank in range(len(self.stage.ranks)))

    def timeline(self) -> Timeline:
        """Give it as a Timeline."""
        return self.stage.timeline(self.start, self.end)


def quiet_machine(machine: Platform, gap: float) -> Platform:
    """Give a machine that adds nothing but the gap between kernels to what was recorded."""
    device = replace(
        machine.require_device(), launch=gap, host_launch=0.0, signal=0.0, dma=None, shared=None
    )
    return replace(machine, device=device)


class _Known:
    """Prices of a workload that has them all."""

    def kernel(self, cost: object) -> float:
        raise AssertionError(cost)

    def collective(self, what: Collective, ranks: tuple[int, ...]) -> float:
        raise AssertionError((what, ranks))
