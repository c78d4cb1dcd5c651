"""Start the processes of a world, collect their results and clean up."""

import contextlib
import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess, SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from weft._core import FaultReason, Launcher, die_with
from weft.errors import RankDiedError, RunError, RunTimeoutError, UsageError, WeftError
from weft.runtime.communicator import DEFAULT_TIMEOUT, create_segment
from weft.runtime.engine_threads import Engines, engines_of
from weft.runtime.faults import require_timeout
from weft.runtime.world import World

P = ParamSpec("P")
R = TypeVar("R")

_MAX_GRACE = 10.0  # seconds for the others to end after one has failed
_POLL_SECONDS = 0.2  # seconds between polls for processes that ended without a result


class _Failure(NamedTuple):
    """How one rank failed."""

    kind: type[RunError]
    message: str
    hint: str
    trace: str = ""


class _Child(NamedTuple):
    process: SpawnProcess | ForkServerProcess
    results: Connection


def spawn(
    fn: Callable[Concatenate[World, P], R],
    ranks: int,
    *args: Any,
    timeout: float = DEFAULT_TIMEOUT,
    engines: Engines | Sequence[Engines] | None = None,
) -> list[R]:
    """Call ``fn(world, *args)`` in ``ranks`` new processes; return their results by rank.

    ``timeout`` is how many seconds a rank waits for the others at any one point. When a rank
    raises or dies the others stop with an error and the first cause is raised here, with the
    traceback of the rank. ``fn`` and ``args`` are pickled. ``engines`` sets the cores and the
    priority of threads, for all ranks or for each; the default is WEFT_ENGINES. After
    ``multiprocessing.set_start_method("forkserver")`` ranks are forked from the server,
    with all modules preloaded there, which is much faster.
    """
    require_timeout(timeout)
    # Pickled here and not by Process: an error names the function, and no rank has started yet.
    job = _pickled(fn, args)
    per_rank = [engines_of(rank, engines) for rank in range(ranks)]
    for each in dict.fromkeys(per_rank):
        each.require_possible()
    launcher = create_segment(ranks)
    children: list[_Child] = []
    try:
        for rank in range(ranks):  # in a loop: those already started are ended if the next fails
            child = _start(launcher.name, rank, timeout, per_rank[rank], job)
            children.append(child)
        return _collect(launcher, children, timeout)
    except BaseException as error:
        launcher.fail(FaultReason.RAISED, -1, f"spawn ended by {type(error).__name__}".encode())
        raise
    finally:
        _end(children)
        launcher.close()


def _pickled(fn: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps((fn, args))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"spawn: the function and its arguments cannot be pickled ({error}).",
            "Define the function at the top level of a module.",
        ) from error


def _start(name: str, rank: int, timeout: float, engines: Engines, job: bytes) -> _Child:
    context = _context()
    receive, send = context.Pipe(duplex=False)
    own = os.getpid() if isinstance(context, SpawnContext) else dict(os.environ)
    process = context.Process(
        target=_rank_main,
        args=(name, rank, timeout, engines, job, send, own),
        name=f"weft rank {rank}",
    )
    try:
        process.start()
    except BaseException:
        receive.close()
        raise
    finally:
        send.close()  # the child has the only write end, so its death is an EOF here
    return _Child(process, receive)


def _context() -> SpawnContext | ForkServerContext:
    if multiprocessing.get_start_method(allow_none=True) == "forkserver":
        return multiprocessing.get_context("forkserver")
    return multiprocessing.get_context("spawn")


def _rank_main(
    name: str,
    rank: int,
    timeout: float,
    engines: Engines,
    job: bytes,
    results: Connection,
    own: int | dict[str, str],
) -> None:
    """Run one rank: a child of process ``own``, or of a fork server with environment ``own``.

    A fork server still has the environment of its start. It ends with the process that started it.
    """
    if isinstance(own, dict):
        os.environ.clear()
        os.environ.update(own)
        own = os.getppid()
    if not die_with(own):
        return
    world = None
    try:
        world = World(name, rank, timeout=timeout, engines=engines)
        fn, args = pickle.loads(job)  # noqa: S301 - our parent wrote it
        answer = pickle.dumps((True, fn(world, *args)))
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        if world is not None:
            world.fail_with(error)
        answer = pickle.dumps((False, _failure_of(rank, error)))
    if world is not None:
        world.close()
    with contextlib.suppress(BrokenPipeError):  # the parent was interrupted and has ended
        results.send_bytes(answer)
    results.close()


def _failure_of(rank: int, error: BaseException) -> _Failure:
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, RunError) and type(error).__module__ == RunError.__module__:
        return _Failure(type(error), error.message, error.hint, trace)
    what = "".join(traceback.format_exception_only(error)).strip()
    hint = error.hint if isinstance(error, WeftError) else ""
    return _Failure(RunError, f"rank {rank} raised {what}", hint, trace)


def _collect(launcher: Launcher, children: list[_Child], timeout: float) -> list[Any]:
    """Wait for the results of all ranks; after a failure for at most ``_MAX_GRACE`` seconds.

    A rank may compute for as long as it likes, but a stopped one is waited for ``timeout`` seconds:
    the others may have caught their errors and returned. Time in which this process was stopped,
    too, does not count.
    """
    results: dict[int, Any] = {}
    failures: dict[int, _Failure] = {}
    deadline = float("inf")
    stopped, looked = 0.0, time.monotonic()  # seconds in which all that are open were stopped
    while (open_ranks := _without_answer(children, results, failures)) and (
        time.monotonic() < deadline
    ):
        _wait([children[rank] for rank in open_ranks])
        for rank in open_ranks:
            answer = _answer(rank, children[rank])
            if isinstance(answer, _Failure):
                failures[rank] = answer
                died = answer.kind is RankDiedError
                reason = FaultReason.DIED if died else FaultReason.RAISED
                launcher.fail(reason, rank, answer.message.encode())
                deadline = min(deadline, time.monotonic() + min(timeout, _MAX_GRACE))
            elif answer is not None:
                results[rank] = answer[0]
        now = time.monotonic()
        still = all(_is_stopped(children[rank]) for rank in open_ranks)
        stopped = stopped + min(now - looked, 2 * _POLL_SECONDS) if still else 0.0
        looked = now
        if stopped > timeout and not failures:
            failures |= {rank: _stopped(rank, timeout) for rank in open_ranks}
    if failures:
        raise _first_cause(launcher, failures)
    return [results[rank] for rank in range(len(children))]


def _without_answer(children: list[_Child], *answered: dict[int, Any]) -> list[int]:
    return [rank for rank in range(len(children)) if not any(rank in a for a in answered)]


def _wait(children: list[_Child]) -> None:
    connection.wait(
        [c.results for c in children] + [c.process.sentinel for c in children],
        timeout=_POLL_SECONDS,
    )


def _answer(rank: int, child: _Child) -> _Failure | tuple[Any] | None:
    """Return the result of a rank, how it failed, or None while it is running."""
    # Read before the pipe: it may send its result, then end.
    ended = child.process.exitcode is not None
    try:
        if child.results.poll():
            good, value = pickle.loads(child.results.recv_bytes())  # noqa: S301 - our child's
            return (value,) if good else value
    except EOFError:
        child.process.join(_POLL_SECONDS)
        ended = True
    if not ended:
        return None
    return _Failure(
        RankDiedError,
        f"rank {rank} died ({_ending(child.process.exitcode)})",
        f"Check the output of rank {rank} for the reason.",
    )


def _is_stopped(child: _Child) -> bool:
    """Return whether a signal has stopped a process, such as SIGSTOP; a debugger does not count."""
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{child.process.pid}/stat").read_text(encoding="utf-8")
        return text.rpartition(")")[2].split()[0] == "T"
    return False


def _stopped(rank: int, seconds: float) -> _Failure:
    return _Failure(
        RunTimeoutError,
        f"rank {rank} was stopped by a signal for {seconds:g} s, and no other rank was running",
        "Check what sends it SIGSTOP or SIGTSTP.",
    )


def _ending(exitcode: int | None) -> str:
    if exitcode is None:
        return "it closed its end of the pipe"
    if exitcode >= 0:
        return f"exit code {exitcode}"
    try:
        return signal.Signals(-exitcode).name
    except ValueError:  # a real-time signal, which has no name
        return f"signal {-exitcode}"


def _first_cause(launcher: Launcher, failures: dict[int, _Failure]) -> RunError:
    """Return the failure that caused the others."""
    fault = launcher.fault()
    first = next(iter(failures.values()))
    failure = first if fault is None else failures.get(fault[1], first)
    trace = f"\n\n{failure.trace.rstrip()}" if failure.trace else ""
    return failure.kind(f"{failure.message.rstrip('.')}.{trace}", failure.hint)


def _end(children: list[_Child]) -> None:
    """Kill processes that still run, also stopped ones."""
    for child in children:
        if child.process.is_alive():
            child.process.kill()
    for child in children:
        child.process.join()
        child.process.close()
        child.results.close()
