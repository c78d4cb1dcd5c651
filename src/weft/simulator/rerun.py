"""A schedule of opaque kernels priced once and let run again with other seconds.

Pricing thousands of rows takes a hundred times as long as letting them run. What changes here is
how long kernels take, how many waves of tiles they have, and which queues go first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from weft import _core
from weft.schedule import Kind, write_out
from weft.simulator.interpreter import check_ended
from weft.simulator.pricing import price
from weft.simulator.symmetry import platform_symmetry
from weft.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from weft.hardware import Platform
    from weft.schedule import Schedule

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]


class Rerun:
    """The priced rows of one schedule, every rank for itself."""

    def __init__(self, schedule: Schedule, platform: Platform) -> None:
        symmetry = platform_symmetry(schedule, platform, collapse=False)
        self.table = write_out(schedule, symmetry.representatives())
        self._priced = price(self.table, platform, symmetry)
        self._launch, self._platform = platform.require_device().launch, platform.name

    def rows(self, rank: int, queue: str, kinds: Collection[int]) -> Ints:
        """Give the rows of these kinds in a queue of a rank, in order."""
        table = self.table
        if queue not in table.queues:
            return np.empty(0, np.int64)
        threads = np.flatnonzero(
            (table.thread_rank == rank) & (table.thread_queue == table.queues.index(queue))
        )
        inside = np.isin(table.thread, threads) & np.isin(table.kind, list(kinds))
        return np.flatnonzero(inside)

    def times(
        self, rows: Ints, seconds: Floats, waves: Floats, first: Collection[tuple[int, str]] = ()
    ) -> tuple[Floats, Floats]:
        """Give start and end of every row if the kernels at ``rows`` take these seconds.

        The queues of ``first``, by rank and name, have a higher priority.
        """
        columns = dict(self._priced.columns)
        before = columns["before"].copy()
        before[rows] = self._launch + seconds
        dispatch = columns["dispatch"].copy() if "dispatch" in columns else self._kernels()
        later = np.where(waves > 1, self._launch + seconds * (1 - 1 / np.maximum(waves, 1)), 0.0)
        dispatch[rows] = np.where(dispatch[rows] < 0, -1.0, later)
        columns |= {"before": before, "dispatch": dispatch}
        if first:
            columns["thread_priority"] = self._priorities(first)
        start, end = (np.full(self.table.num_rows, np.nan) for _ in range(2))
        _core.simulate(columns, self._priced.num_flags, 0.0, start, end)
        check_ended(self.table, end)
        return start, end

    def _kernels(self) -> Floats:
        """Tell the rows that are dispatched on units: zero there, -1 elsewhere."""
        table = self.table
        streams = [number for number, q in enumerate(table.queues) if q.startswith("stream")]
        bare = np.isin(table.thread_queue[table.thread], streams)
        bare &= np.isin(table.kind, (Kind.KERNEL, Kind.LAUNCH))
        return np.where(bare & (table.thread_lane[table.thread] < 0), 0.0, -1.0)

    def _priorities(self, first: Collection[tuple[int, str]]) -> NDArray[np.int32]:
        table = self.table
        names = [table.queues[number] for number in table.thread_queue.tolist()]
        places = zip(table.thread_rank.tolist(), names, strict=True)
        higher = np.array([place in first for place in places], np.int32)
        priority: NDArray[np.int32] = self._priced.columns["thread_priority"] + higher
        return priority

    def timeline(self, start: Floats, end: Floats) -> Timeline:
        """Give what ``times`` found as a Timeline."""
        return Timeline.from_table(
            self.table, start, end, basis="predicted", platform=self._platform, origin=0.0
        )
