"""One run of a step: when every op started and ended."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from weft.schedule import CommandKind
from weft.step.layout import WAIT
from weft.timeline import Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.step.engine import StepEngine
    from weft.step.layout import Place

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_KINDS = np.array(
    [
        CommandKind.KERNEL,
        CommandKind.SIGNAL,
        CommandKind.WAIT,
        CommandKind.COPY,
        CommandKind.SUBMIT,
        CommandKind.KERNEL,
    ],
    np.uint8,
)


@dataclass(frozen=True, repr=False)
class StepRun:
    """Times of all rows of one run."""

    engine: StepEngine
    row_start: Floats
    row_end: Floats

    def __repr__(self) -> str:
        return f"<StepRun of {self.engine.graph.name}: {self.seconds:.6g} s>"

    @cached_property
    def seconds(self) -> float:
        """What the step takes: its period where the engine has a rule for that, or its makespan."""
        return self.engine.period(self) if self.engine.period is not None else self.makespan

    @property
    def makespan(self) -> float:
        """When the last op, or host, has ended."""
        return float(self.row_end.max(initial=0.0))

    def length(self, place: Place) -> float:
        """Return how long an op runs once it has begun: its launch and its waiting left out."""
        row = self.engine.layout.row[place]
        before = self.engine.fixed["before"][row] - self.engine.layout.pauses.get(row, 0.0)
        return float(self.row_end[row] - self.row_start[row]) - float(before)

    def span(self, place: Place) -> tuple[float, float]:
        """Return when an op started and ended."""
        layout = self.engine.layout
        row = layout.row[place]
        return float(self.row_start[layout.launch_row.get(place, row)]), float(self.row_end[row])

    def timeline(self) -> Timeline:
        """Return the run as a Timeline, one rank for each class of ranks.

        The k-th kernel or copy of a queue is the k-th op of its stream.
        """
        engine, fixed = self.engine, self.engine.fixed
        steps = engine.graph.steps
        shown = fixed["thread_launch"][fixed["thread"]] < 0  # a collective is one span
        rows = np.flatnonzero(shown)
        queues, queue = self._queues()
        names, name = self._names(rows)
        thread, kind = fixed["thread"][rows], _KINDS[fixed["step"][rows]]
        rank, target = fixed["thread_pool"], fixed["target"][rows]
        count, flag = len(rows), fixed["flag"][rows].astype(np.int64)
        to = np.where(target >= 0, target, 0)
        return Timeline(
            schedule=engine.graph.name,
            platform=engine.platform.name,
            basis="predicted",
            num_ranks=len(steps),
            ranks=np.arange(len(steps)),
            represents=np.array([len(step.ranks) for step in steps], np.int64),
            queues=queues,
            names=names,
            rank=rank[thread],
            queue=queue[thread],
            lane=np.full(count, -1, np.int32),
            id=np.arange(count, dtype=np.int32),
            kind=kind,
            name=name,
            start=self.row_start[rows],
            end=self.row_end[rows],
            nbytes=np.zeros(count, np.int64),
            joules=np.zeros(count),
            parent=np.full(count, -1, np.int64),
            flag=flag,
            count=fixed["count"][rows],
            target=np.where(target >= 0, rank[to].astype(np.int64) << 32 | queue[to], -1),
            fed=fixed["fed"][rows],
        )

    def _queues(self) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        """Return the names of queues and, for each thread, which of them it is."""
        engine = self.engine
        pool = engine.fixed["thread_pool"].tolist()
        of_class = [0] * len(engine.graph.steps)
        number = np.full(len(pool), -1, np.int32)
        for thread, launch in enumerate(engine.fixed["thread_launch"].tolist()):
            if launch < 0:
                number[thread] = of_class[pool[thread]]
                of_class[pool[thread]] += 1
        most = max(of_class, default=1)
        return ("host", *(f"stream{index}" for index in range(most - 1))), number

    def _names(self, rows: Ints) -> tuple[tuple[str, ...], NDArray[np.int32]]:
        engine = self.engine
        named = dict.fromkeys(rows[engine.fixed["step"][rows] == WAIT].tolist(), "Wait")
        for place, row in engine.layout.issue_row.items():
            op = engine.op(place)
            named[row] = op.name if op.kind == "host" else f"issue {op.name}"
        for place, row in engine.layout.row.items():
            named[engine.layout.launch_row.get(place, row)] = engine.op(place).name
        numbers: dict[str, int] = {}
        found = [
            numbers.setdefault(named.get(row, "Signal"), len(numbers)) for row in rows.tolist()
        ]
        return tuple(numbers), np.array(found, np.int32)
