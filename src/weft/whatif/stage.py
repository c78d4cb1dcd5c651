"""Recorded steps put on the simulator once, to be let run again and again."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from weft.schedule import Kind
from weft.simulator import Rerun
from weft.whatif.recorded import MARK, workload_of
from weft.workload import NO_HOST, lower, queues_of, stage

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from weft.hardware import Platform
    from weft.timeline import Timeline
    from weft.whatif.calls import Floats, Ints
    from weft.whatif.recorded import Recording
    from weft.workload import Collective

ITERATIONS = 3  # the third begins as the second did


class Stage:
    """The recordings of some ranks as one schedule. What the device adds is the gap alone."""

    def __init__(
        self, ranks: Sequence[Recording], machine: Platform, iterations: int = ITERATIONS
    ) -> None:
        self.ranks, self.machine, self.iterations = tuple(ranks), machine, iterations
        gap = max(rank.overheads.gap for rank in ranks)
        units = machine.require_device().units
        workload = workload_of("replay", ranks, units, iterations)
        quiet = stage(quiet_machine(machine, gap), workload)
        self.queues = [queues_of(step) for step in workload.steps]
        self._again = Rerun(lower(workload, quiet, _Known(), host=NO_HOST), quiet)
        self.rows = [self._rows(number) for number in range(len(ranks))]
        self._marks = [self._mark_rows(number) for number in range(len(ranks))]

    def _rows(self, number: int) -> Ints:
        """Give the row of each launch, by iteration and call; -1 for calls that launch nothing."""
        calls = self.ranks[number].calls
        out = np.full((self.iterations, len(calls)), -1)
        for stream, queue in self.queues[number].items():
            mine = calls.launches[calls.stream[calls.launches] == int(stream)]
            found = self._again.rows(number, queue, (Kind.KERNEL,))
            out[:, mine] = found.reshape(self.iterations, len(mine))
        return out

    def _mark_rows(self, number: int) -> Ints:
        table = self._again.table
        rows = self._again.rows(number, "host", (Kind.KERNEL,))
        names = (getattr(table.commands[c], "op", "") for c in table.command[rows].tolist())
        return rows[[name == MARK for name in names]]

    def run(self, ranks: Sequence[Recording] | None = None, first: Collection[str] = ()) -> Run:
        """Let it run with the seconds of ``ranks``; streams named in ``first`` go first."""
        ranks = ranks or self.ranks
        rows, seconds, waves, pauses = [], [], [], []
        for number, rank in enumerate(ranks):
            mine = rank.calls.launches
            rows.append(self.rows[number][:, mine].reshape(-1))
            pauses.append(np.tile(rank.overheads.pauses[mine], self.iterations))
            seconds.append(np.tile(rank.seconds[mine], self.iterations) + pauses[-1])
            waves.append(np.tile(rank.calls.waves[mine], self.iterations))
        higher = [
            (number, queue)
            for number, queues in enumerate(self.queues)
            for stream, queue in queues.items()
            if stream in first
        ]
        start, end = self._again.times(
            np.concatenate(rows), np.concatenate(seconds), np.concatenate(waves), higher
        )
        start[np.concatenate(rows)] += np.concatenate(pauses)  # the stream idles until then
        return Run(self, start, end)

    def timeline(self, start: Floats, end: Floats) -> Timeline:
        """Give a run as a Timeline."""
        return self._again.timeline(start, end)

    def marks(self, number: int) -> Ints:
        """Give the rows of a rank at which iterations begin, and that of the end of the last."""
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
