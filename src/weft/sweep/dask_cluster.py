"""Runs the cells of a sweep on a Dask cluster."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from weft.errors import RunError, UsageError
from weft.sweep.cells import SweepCell
from weft.sweep.journal import CellAnswer

Rows = list[dict[str, Any]]
Ask = Callable[[tuple[str, ...]], tuple[Rows, str]]

_CONNECT = 10.0  # seconds to wait for a scheduler
_AHEAD = 4  # cells in flight per thread of the cluster


def run_on_dask(
    cells: Sequence[SweepCell], numbers: Sequence[int], ask: Ask, *, address: str, timeout: float
) -> Iterator[CellAnswer]:
    """Yield the answers of the numbered cells as workers of the cluster finish them.

    The workers need weft installed. If a worker dies, Dask retries its cells on another worker; a
    cell that kills every worker is recorded as failed.
    """
    client = _client(address)
    try:
        _check_workers(client, address)
        yield from _answers(client, cells, numbers, ask, timeout)
    finally:
        client.close(timeout=_CONNECT)


def _client(address: str) -> Any:
    try:
        from distributed import Client
    except ModuleNotFoundError as error:
        raise UsageError(
            "--dask needs the package distributed, which is not installed",
            "Run pip install 'weft[sweep]'.",
        ) from error
    try:
        return Client(address, timeout=_CONNECT)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {address!r} ({type(error).__name__})",
            "Start one with dask scheduler, and pass its address as tcp://host:8786.",
        ) from error


def _check_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_CONNECT)
    except (TimeoutError, OSError) as error:
        raise RunError(
            f"the scheduler at {address} has no workers", f"Start some with: dask worker {address}."
        ) from error


def _answers(
    client: Any, cells: Sequence[SweepCell], numbers: Sequence[int], ask: Ask, timeout: float
) -> Iterator[CellAnswer]:
    """Keep a few cells per thread in flight; each must end within ``timeout``."""
    from distributed import wait

    most = _AHEAD * max(1, sum(client.nthreads().values()))
    waiting, flying = deque(numbers), dict[Any, int]()
    try:
        while waiting or flying:
            while waiting and len(flying) < most:
                number = waiting.popleft()
                flying[client.submit(ask, cells[number].words, pure=False)] = number
            try:
                done = wait(list(flying), timeout=timeout, return_when="FIRST_COMPLETED").done
            except TimeoutError:
                done = set(flying)
            for future in done:
                yield _answer(future, flying.pop(future), timeout)
    finally:
        client.cancel(list(flying), force=True)


def _answer(future: Any, number: int, timeout: float) -> CellAnswer:
    """Return the rows of a cell, or the reason of its failure."""
    if future.status == "finished":
        rows, error = future.result(timeout=_CONNECT)
        return CellAnswer(number, rows, error)
    if future.status == "error":
        wrong = future.exception(timeout=_CONNECT)
        text = str(wrong).splitlines()[0] if str(wrong) else ""
        return CellAnswer(number, error=f"{type(wrong).__name__}: {text}", again=True)
    future.cancel()
    return CellAnswer(number, error=f"gave no answer in {timeout:g} s", again=True)
