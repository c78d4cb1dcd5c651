"""The rows of a program for an unspecified rank: which commands, in which rows, in which thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from weft.errors import ScheduleError
from weft.schedule.ir import Command, Launch, Program, Queue, Repeat, Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from weft.schedule.schedule import Schedule

    Ints = NDArray[np.int64]


class Numbering:
    """Numbers the queues, buffers and stored commands of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        queues = {q.name for p in schedule.programs for q in p.queues}
        self.queues = {name: number for number, name in enumerate(sorted(queues))}
        self.buffers = {b.name: number for number, b in enumerate(schedule.buffers)}
        self.commands: list[Command] = []
        self.declarations: list[Queue] = []

    def buffer(self, name: str) -> int:
        """Return the number of a declared buffer."""
        if name not in self.buffers:
            raise ScheduleError(
                f"undeclared buffer {name!r}.",
                f"Declared buffers: {', '.join(self.buffers) or 'none'}.",
            )
        return self.buffers[name]

    def queue(self, name: str) -> int:
        """Return the number of a queue; a Submit may be the first to name it."""
        return self.queues.setdefault(name, len(self.queues))


class CommandPositions(NamedTuple):
    """The rows of one stored command: each array has one entry per iteration."""

    rows: Ints
    threads: Ints
    parents: Ints
    fed: Ints
    counters: tuple[Ints, ...]


class Emission(NamedTuple):
    """A stored command, its number, and its rows."""

    command: Command
    number: int
    at: CommandPositions


class Template:
    """The rows of one program for an unspecified rank."""

    def __init__(self, names: Numbering, program: Program) -> None:
        self.names = names
        self.emissions: list[Emission] = []
        self.num_rows = 0
        self.num_threads = 0
        self.threads: list[dict[str, Ints]] = []  # columns, in pieces
        for queue in program.queues:
            size = num_rows_of(queue.commands)
            start = np.array([self.num_rows], np.int64)
            self.declaration = len(self.names.declarations)
            self.names.declarations.append(queue)
            self.queue_number = self.names.queue(queue.name)
            thread = self._new_threads(start, start + size, np.array([-1]), np.array([-1]))
            none = np.array([-1], np.int64)
            self._place(
                queue.commands, CommandPositions(start, thread, none, np.array([0], np.int64), ())
            )
            self.num_rows += size

    def _new_threads(self, start: Ints, stop: Ints, lane: Ints, launch: Ints) -> Ints:
        numbers = np.arange(self.num_threads, self.num_threads + len(start))
        self.num_threads += len(start)
        queue = np.full(len(start), self.queue_number)
        declared = np.full(len(start), self.declaration)
        self.threads.append(
            {
                "start": start,
                "stop": stop,
                "lane": lane,
                "launch": launch,
                "queue": queue,
                "decl": declared,
            }
        )
        return numbers

    def _place(self, items: Sequence[Command | Repeat], at: CommandPositions) -> CommandPositions:
        """Assign rows to ``items`` one after another; return the position after the last."""
        for item in items:
            match item:
                case Repeat():
                    size = num_rows_of(item.body)
                    if size:  # an empty loop may have any count
                        inner = _iterations(at, item, size, num_fed_of(item.body))
                        self._place(item.body, inner)
                case Scope():
                    unfed = np.full(len(at.fed), -1)
                    self._emit(item, at._replace(fed=unfed))
                    inside = at._replace(rows=at.rows + 1, parents=at.rows, fed=unfed)
                    inside = self._place(item.enter, inside)
                    inside = self._place(item.body, inside._replace(fed=at.fed))
                    self._place(item.leave, inside._replace(fed=unfed))
                case Launch():
                    self._emit(item, at)
                    self._lanes(item, at)
                case _:
                    self._emit(item, at)
            fed = np.where(at.fed >= 0, at.fed + num_fed_of((item,)), -1)
            at = at._replace(rows=at.rows + num_rows_of((item,)), fed=fed)
        return at

    def _lanes(self, launch: Launch, at: CommandPositions) -> None:
        rows = at.rows + 1
        number = np.zeros(len(rows), np.int64)
        unfed = np.full(len(rows), -1)
        for lane in launch.lanes:
            body = lane.body if isinstance(lane, Repeat) else lane
            count = lane.count if isinstance(lane, Repeat) else 1
            size = num_rows_of(body)
            if not size:
                continue
            each = at._replace(rows=rows, parents=at.rows, fed=unfed)
            if isinstance(lane, Repeat):
                each = _iterations(each, lane, size, 0)
            lane_number = (number[:, None] + np.arange(count)).ravel()
            threads = self._new_threads(each.rows, each.rows + size, lane_number, each.parents)
            self._place(body, each._replace(threads=threads))
            rows = rows + count * size
            number = number + count

    def _emit(self, command: Command, at: CommandPositions) -> None:
        self.emissions.append(Emission(command, len(self.names.commands), at))
        self.names.commands.append(command)


def _iterations(
    at: CommandPositions, loop: Repeat, rows_each: int, fed_each: int
) -> CommandPositions:
    """Return the positions ``at`` repeated ``loop.count`` times, with one more counter."""
    k = np.arange(loop.count)
    fed = np.where(at.fed[:, None] >= 0, at.fed[:, None] + fed_each * k, -1)
    counters = tuple(np.repeat(c, loop.count) for c in at.counters)
    return CommandPositions(
        (at.rows[:, None] + rows_each * k).ravel(),
        np.repeat(at.threads, loop.count),
        np.repeat(at.parents, loop.count),
        fed.ravel(),
        (*counters, np.tile(k, len(at.rows))),
    )


def num_rows_of(items: Sequence[Command | Repeat]) -> int:
    """Return the number of rows of ``items``, including nested commands."""
    total = 0
    for item in items:
        match item:
            case Repeat():
                total += item.count * num_rows_of(item.body)
            case Scope():
                total += 1 + len(item.enter) + num_rows_of(item.body) + len(item.leave)
            case Launch():
                total += 1
                for lane in item.lanes:
                    total += num_rows_of((lane,) if isinstance(lane, Repeat) else lane)
            case _:
                total += 1
    return total


def num_fed_of(items: Sequence[Command | Repeat]) -> int:
    """Return how many of ``items`` a Submit counts."""
    total = 0
    for item in items:
        match item:
            case Repeat():
                total += item.count * num_fed_of(item.body)
            case Scope():
                total += num_fed_of(item.body)
            case _:
                total += 1
    return total
