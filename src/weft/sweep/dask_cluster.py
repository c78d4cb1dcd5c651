"""Cells beyond one machine: on a Dask cluster, through its ordinary client."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from weft.errors import RunError, UsageError
from weft.sweep.journal import Answer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from weft.sweep.cells import Cell

    Rows = list[dict[str, Any]]
    Ask = Callable[[tuple[str, ...]], tuple[Rows, str]]

_CONNECT = 10.0  # seconds until a scheduler must have answered
_AHEAD = 4  # cells for each thread of the cluster that are under way at once


def on_dask(
    cells: Sequence[Cell], numbers: Sequence[int], ask: Ask, *, address: str, timeout: float
) -> Iterator[Answer]:
    """Give the answers of the cells of these numbers as workers of the cluster send them.

    The cluster needs weft itself. A worker that dies takes no cell with it: Dask gives it to
    another, and one that no worker survives is written down as what it is.
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
            "--dask needs distributed, which is not here", "Use pip install 'weft[sweep]'."
        ) from error
    try:
        return Client(address, timeout=_CONNECT)
    except (OSError, ValueError, TimeoutError) as error:
        raise UsageError(
            f"no Dask scheduler answers at {address!r} ({type(error).__name__})",
            "Start one by dask scheduler, and give its address as tcp://host:8786.",
        ) from error


def _check_workers(client: Any, address: str) -> None:
    try:
        client.wait_for_workers(1, timeout=_CONNECT)
    except (TimeoutError, OSError) as error:
        raise RunError(
            f"the scheduler at {address} has no workers",
            f"Start some by: dask worker {address}.",
        ) from error


def _answers(
    client: Any, cells: Sequence[Cell], numbers: Sequence[int], ask: Ask, timeout: float
) -> Iterator[Answer]:
    """Keep some cells for every thread under way; all that are must end once within ``timeout``."""
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


def _answer(future: Any, number: int, timeout: float) -> Answer:
    """Take the rows of a cell, or say why there are none."""
    if future.status == "finished":
        rows, error = future.result(timeout=_CONNECT)
        return Answer(number, rows, error)
    if future.status == "error":
        wrong = future.exception(timeout=_CONNECT)
        said = str(wrong).splitlines()[0] if str(wrong) else ""
        return Answer(number, error=f"{type(wrong).__name__}: {said}", again=True)
    future.cancel()
    return Answer(number, error=f"gave no answer in {timeout:g} s", again=True)
