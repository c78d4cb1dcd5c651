"""Cells on all cores of this machine: a process a core, each asked for one cell at a time.

A process that dies takes one cell with it: that is tried once more, then written down as what it
is, and a new process takes the place of the dead one.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections import deque
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from weft.errors import UsageError
from weft.sweep.journal import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from multiprocessing.connection import Connection

    from weft.sweep.cells import Cell

    Rows = list[dict[str, Any]]
    Ask = Callable[[tuple[str, ...]], tuple[Rows, str]]

_TRIES = 2  # of a cell whose process died
_PATIENCE = 5.0  # seconds that a process has to end


@dataclass
class _Worker:
    """A process, the line to it, and the cell it works on."""

    process: Any
    line: Connection
    number: int = -1
    since: float = 0.0


@dataclass
class _Crew:
    """The processes of a sweep."""

    ask: Ask
    workers: list[_Worker] = field(default_factory=list)

    def hire(self) -> _Worker:
        context = multiprocessing.get_context("forkserver")
        mine, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, self.ask), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, mine)
        self.workers.append(worker)
        return worker

    def dismiss(self, worker: _Worker) -> None:
        """End a process, in any state."""
        self.workers.remove(worker)
        worker.line.close()
        worker.process.terminate()
        worker.process.join(_PATIENCE)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join(_PATIENCE)

    def close(self) -> None:
        """End all processes."""
        for worker in list(self.workers):
            self.dismiss(worker)


def on_this_machine(
    cells: Sequence[Cell],
    numbers: Sequence[int],
    ask: Ask,
    *,
    workers: int,
    timeout: float,
) -> Generator[Answer, None, None]:
    """Give the answers of the cells of these numbers as they come, in any order."""
    if workers < 1 or not timeout > 0:
        raise UsageError(
            f"{workers} processes with {timeout:g} seconds for a cell answer nothing",
            "Use 1 or more of both.",
        )
    left, tries = deque(numbers), dict.fromkeys(numbers, 0)
    with closing(_Crew(ask)) as crew:
        for _ in range(min(workers, len(left))):
            _give(crew.hire(), left, cells, tries)
        while any(worker.number >= 0 for worker in crew.workers):
            for worker in _heard(crew.workers, timeout):
                answer = _taken(worker, tries, timeout)
                if worker.number < 0:  # it lives and wants more
                    _give(worker, left, cells, tries)
                else:
                    if answer is None:
                        left.appendleft(worker.number)
                    crew.dismiss(worker)
                    if left:
                        _give(crew.hire(), left, cells, tries)
                if answer is not None:
                    yield answer


def _give(worker: _Worker, left: deque[int], cells: Sequence[Cell], tries: dict[int, int]) -> None:
    if not left:
        return
    worker.number, worker.since = left.popleft(), time.monotonic()
    tries[worker.number] += 1
    with suppress(OSError):  # one that died meanwhile is heard of as any other
        worker.line.send(cells[worker.number].words)


def _heard(workers: list[_Worker], timeout: float) -> list[_Worker]:
    """Wait for those that answer, that die, or whose time is over."""
    busy = {worker.line: worker for worker in workers if worker.number >= 0}
    first = min(worker.since for worker in busy.values())
    patience = max(0.0, first + timeout - time.monotonic())
    found = [busy[line] for line in wait(list(busy), patience) if line in busy]
    now = time.monotonic()
    late = [each for each in busy.values() if now - each.since >= timeout and each not in found]
    return found + late


def _taken(worker: _Worker, tries: dict[int, int], timeout: float) -> Answer | None:
    """Take what a process has to say; none if its cell is to be tried again."""
    number = worker.number
    if not worker.line.poll():
        return Answer(number, error=f"gave no answer in {timeout:g} s", again=True)
    try:
        rows, error = worker.line.recv()
    except (EOFError, OSError):
        if tries[number] < _TRIES:
            return None
        worker.process.join(_PATIENCE)
        code = worker.process.exitcode
        return Answer(number, error=f"its process died (exit code {code})", again=True)
    worker.number = -1
    return Answer(number, rows, error)


def _work(line: Connection, ask: Ask) -> None:
    """Answer cells until nobody asks. An interrupt is for whoever asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            line.send(ask(line.recv()))
        except (EOFError, OSError):
            return
