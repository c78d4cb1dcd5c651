"""Rendezvous of ranks started by a launcher such as torchrun, by its environment variables.

Rank 0 creates the shared memory and writes its name into a locked file in /dev/shm, whose own name
follows from the environment; the other ranks read it there.
"""

import fcntl
import hashlib
import itertools
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.errors import RunError, RunTimeoutError, UsageError
from weft.runtime.communicator import DEFAULT_TIMEOUT, create_segment
from weft.runtime.engine_threads import Engines, engines_of
from weft.runtime.stale_segments import PREFIX, SHARED_MEMORY, is_at
from weft.runtime.world import World

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_NAMING = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "WORLD_SIZE",
)
_POLL_SECONDS = 0.002  # seconds between polls for rank 0
_calls = itertools.count()


def world(*, timeout: float = DEFAULT_TIMEOUT, engines: Engines | None = None) -> World:
    """Join the other ranks that the launcher of this process started on this machine.

    ``timeout`` is how many seconds a rank waits for the others at any one point; ``engines``
    sets the cores of this rank's threads, by default those of WEFT_ENGINES.
    """
    rank, num_ranks = _rank_and_size(os.environ)
    engines = engines_of(rank, engines)
    path = SHARED_MEMORY / f"{PREFIX}{_name(os.environ, next(_calls))}"
    if rank > 0:
        return World(_found(path, timeout), rank, timeout=timeout, engines=engines)
    launcher = create_segment(num_ranks)
    try:
        with _held(path, timeout) as file:
            os.write(file, launcher.name.encode())
            return World(launcher.name, rank, timeout=timeout, engines=engines)
    finally:
        launcher.close()


def free_port() -> int:
    """Return a port that is free now, for the rendezvous of ranks to be started."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """Return this process's rank and the number of ranks."""
    missing = [name for name in _NEEDED if name not in environment]
    if missing:
        raise UsageError(
            f"environment: {', '.join(missing)} not set.",
            "Start the script with torchrun, or start ranks from Python with weft.spawn.",
        )
    try:
        rank, num_ranks, _, local_ranks = (int(environment[name]) for name in _NEEDED)
    except ValueError as error:
        raise UsageError(f"environment: expected integers ({error}).") from error
    if local_ranks != num_ranks:
        raise RunError(
            f"environment: WORLD_SIZE is {num_ranks}, but LOCAL_WORLD_SIZE is {local_ranks}.",
            "weft.world() needs all ranks on one machine; use torch.distributed across machines.",
        )
    if not 0 <= rank < num_ranks:
        raise UsageError(f"environment: RANK must be from 0 to {num_ranks - 1} (got {rank}).")
    return rank, num_ranks


def _name(environment: Mapping[str, str], call: int) -> str:
    """Return a name that is common to the ranks of one launch and unique for this user."""
    parts = [str(os.geteuid()), str(call), *(environment.get(name, "") for name in _NAMING)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@contextmanager
def _held(path: Path, timeout: float) -> Iterator[int]:
    """Create and lock ``path`` until all ranks have joined."""
    deadline = time.monotonic() + timeout
    while (file := _created(path)) is None:
        if time.monotonic() > deadline:
            raise RunTimeoutError(
                f"rank 0 timed out after {timeout:g} s: {path.name} belongs to another world with "
                "the same MASTER_ADDR and MASTER_PORT.",
                "Use another port or run id for this launch.",
            )
        time.sleep(_POLL_SECONDS)
    try:
        yield file
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def _created(path: Path) -> int | None:
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        with suppress(FileNotFoundError):
            _require_own(path.stat(follow_symlinks=False), path)
        return None
    fcntl.flock(file, fcntl.LOCK_EX)
    if is_at(file, path):  # no other process removed it as stale before it was locked
        return file
    os.close(file)
    return None


def _found(path: Path, timeout: float) -> str:
    """Return the name that rank 0 wrote; an unlocked file is from a dead launch."""
    deadline = time.monotonic() + timeout
    while not (name := _read_if_held(path)):
        if time.monotonic() > deadline:
            raise RunTimeoutError(
                f"weft.world() timed out after {timeout:g} s: rank 0 did not come.",
                "Call weft.world() on every rank, including rank 0.",
            )
        time.sleep(_POLL_SECONDS)
    return name


def _read_if_held(path: Path) -> str:
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except PermissionError:
        raise _taken(path) from None
    try:
        _require_own(os.fstat(file), path)
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(file, 256).decode()
    finally:
        os.close(file)
    return ""


def _require_own(info: os.stat_result, path: Path) -> None:
    if info.st_uid != os.geteuid():
        raise _taken(path)


def _taken(path: Path) -> RunError:
    """Return the error of a name that another user has taken."""
    return RunError(
        f"{path} belongs to another user.",
        "Use another port, or a run id that cannot be guessed.",
    )
