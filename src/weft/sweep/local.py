"""Runs the cells of a sweep on all cores of this machine, one process per core.

If a process dies, its cell is retried once, then recorded as failed, and a new process replaces the
dead one.
"""

import multiprocessing
import signal
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

from weft.errors import UsageError
from weft.sweep.cells import SweepCell
from weft.sweep.journal import CellAnswer

Rows = list[dict[str, Any]]
Ask = Callable[[tuple[str, ...]], tuple[Rows, str]]

_TRIES = 2  # of a cell whose process died
_TIMEOUT = 5.0  # seconds that a process has to exit


@dataclass
class _Worker:
    """A process, the connection to it, and the cell it computes."""

    process: Any
    line: Connection
    number: int = -1
    since: float = 0.0


@dataclass
class _WorkerPool:
    """The worker processes of a sweep."""

    ask: Ask
    workers: list[_Worker] = field(default_factory=list)

    def start_worker(self) -> _Worker:
        context = multiprocessing.get_context("forkserver")
        mine, theirs = context.Pipe()
        process = context.Process(target=_worker_main, args=(theirs, self.ask), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, mine)
        self.workers.append(worker)
        return worker

    def stop_worker(self, worker: _Worker) -> None:
        """Stop a process in any state."""
        self.workers.remove(worker)
        worker.line.close()
        worker.process.terminate()
        worker.process.join(_TIMEOUT)
        if worker.process.is_alive():
            worker.process.kill()
            worker.process.join(_TIMEOUT)

    def close(self) -> None:
        """Stop all processes."""
        for worker in list(self.workers):
            self.stop_worker(worker)


def run_local(
    cells: Sequence[SweepCell],
    numbers: Sequence[int],
    ask: Ask,
    *,
    workers: int,
    timeout: float,
) -> Generator[CellAnswer, None, None]:
    """Yield the answers of the numbered cells as they finish, in any order."""
    if workers < 1 or not timeout > 0:
        raise UsageError(
            f"workers and timeout must be positive (got {workers} and {timeout:g})",
            "Use 1 or more for both.",
        )
    left, tries = deque(numbers), dict.fromkeys(numbers, 0)
    with closing(_WorkerPool(ask)) as pool:
        for _ in range(min(workers, len(left))):
            _assign(pool.start_worker(), left, cells, tries)
        while any(worker.number >= 0 for worker in pool.workers):
            for worker in _wait_for_workers(pool.workers, timeout):
                answer = _take_answer(worker, tries, timeout)
                if worker.number < 0:  # it is alive and ready for more
                    _assign(worker, left, cells, tries)
                else:
                    if answer is None:
                        left.appendleft(worker.number)
                    pool.stop_worker(worker)
                    if left:
                        _assign(pool.start_worker(), left, cells, tries)
                if answer is not None:
                    yield answer


def _assign(
    worker: _Worker, left: deque[int], cells: Sequence[SweepCell], tries: dict[int, int]
) -> None:
    if not left:
        return
    worker.number, worker.since = left.popleft(), time.monotonic()
    tries[worker.number] += 1
    with suppress(OSError):  # a process that died meanwhile is handled like any other
        worker.line.send(cells[worker.number].words)


def _wait_for_workers(workers: list[_Worker], timeout: float) -> list[_Worker]:
    """Wait for workers that answer, die or time out."""
    busy = {worker.line: worker for worker in workers if worker.number >= 0}
    first = min(worker.since for worker in busy.values())
    remaining = max(0.0, first + timeout - time.monotonic())
    found = [busy[line] for line in wait(list(busy), remaining) if line in busy]
    now = time.monotonic()
    late = [each for each in busy.values() if now - each.since >= timeout and each not in found]
    return found + late


def _take_answer(worker: _Worker, tries: dict[int, int], timeout: float) -> CellAnswer | None:
    """Return the answer of a worker, or None if its cell is to be retried."""
    number = worker.number
    if not worker.line.poll():
        return CellAnswer(number, error=f"gave no answer in {timeout:g} s", again=True)
    try:
        rows, error = worker.line.recv()
    except (EOFError, OSError):
        if tries[number] < _TRIES:
            return None
        worker.process.join(_TIMEOUT)
        code = worker.process.exitcode
        return CellAnswer(number, error=f"its process died (exit code {code})", again=True)
    worker.number = -1
    return CellAnswer(number, rows, error)


def _worker_main(line: Connection, ask: Ask) -> None:
    """Compute cells until the connection closes. Interrupts are left to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        try:
            line.send(ask(line.recv()))
        except (EOFError, OSError):
            return
