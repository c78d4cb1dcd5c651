"""Teams of ranks on this machine, each rank a process: starting, requests, and stopping all."""

import contextlib
import json
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from importlib.util import find_spec
from operator import itemgetter
from typing import IO, Any, NamedTuple

from weft.errors import RunError, RunTimeoutError
from weft.local_runs.parent_death import leashed
from weft.runtime.env_rendezvous import free_port

START, ANSWER, LEAVE = 120.0, 300.0, 10.0  # timeouts in seconds
_FRAMES = 4  # lines of a crash that are reported
_LOOK = 0.1  # seconds between checks for processes that exit early


class Start(NamedTuple):
    """A process that becomes one rank or all of them; the address is appended to its arguments."""

    words: Sequence[str]
    environment: Mapping[str, str]


class Team:
    """One team. Its ranks block in the kernel between requests."""

    def __init__(
        self, name: str, num_ranks: int, starts: Sequence[Start], folder: str = ""
    ) -> None:
        self.name = name
        self.about = ""
        self._lines: list[IO[str]] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        # A name in the abstract namespace leaves no file behind. Ranks in other network
        # namespaces do not see it and need a file, in a folder that is removed.
        address = f"{folder}/{name}" if folder else f"weft-bench-{secrets.token_hex(16)}"
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(address if folder else f"\0{address}")
            door.listen(num_ranks)
            try:
                self._processes += (self._start(start, address) for start in starts)
                self._let_in(door, num_ranks)
            except BaseException:
                self.close()
                raise

    def ask(self, do: str, name: str, **more: Any) -> list[dict[str, Any]]:
        """Send all ranks the same request and return all replies."""
        text = json.dumps({"do": do, "name": name, **more}) + "\n"
        try:
            for line in self._lines:
                line.write(text)
                line.flush()
            replies = [json.loads(line.readline() or "null") for line in self._lines]
        except TimeoutError as error:
            raise RunTimeoutError(
                f"{self.name} did not answer {do} within {ANSWER:g} s."
            ) from error
        except OSError as error:
            raise self._died() from error
        for rank, reply in enumerate(replies):
            if reply is None:
                raise self._died()
            if "error" in reply:
                raise RunError(f"rank {rank} of {self.name}: {reply['error']}")
        return replies

    def close(self) -> None:
        """Close the connections; ranks that do not exit are killed, with all they started."""
        for line in self._lines:
            with contextlib.suppress(OSError):  # unsent requests
                line.close()
        deadline = time.monotonic() + (LEAVE if self._lines else 0)
        for process in self._processes:
            _end(process, deadline)
        self._output.close()

    def _start(self, start: Start, address: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*start.words, address],
            env={**os.environ, "PYTHONFAULTHANDLER": "1", **start.environment},
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a process group, so that it can be killed as a whole
        )

    def _let_in(self, door: socket.socket, num_ranks: int) -> None:
        """Accept the connections of all ranks and sort them."""
        deadline = time.monotonic() + START
        door.settimeout(_LOOK)
        ranks: list[int] = []
        while len(ranks) < num_ranks:
            if any(_ends_within(process.pid, 0) for process in self._processes):
                raise self._died("did not start")
            if time.monotonic() > deadline:
                raise RunTimeoutError(f"{self.name} did not start within {START:g} s.")
            with contextlib.suppress(TimeoutError):
                ranks += self._greet(door.accept()[0])
        self._lines = [
            line for _, line in sorted(zip(ranks, self._lines, strict=True), key=itemgetter(0))
        ]

    def _greet(self, caller: socket.socket) -> list[int]:
        """Keep the connection to a rank and return its number; reject other processes."""
        with caller:  # the file made here keeps the line open
            if not _is_ours(caller):
                return []
            caller.settimeout(ANSWER)
            self._lines.append(caller.makefile("rw", encoding="utf-8"))
        text = self._lines[-1].readline()
        if not text:
            raise self._died("did not start")
        hello = json.loads(text)
        self.about = hello["about"]
        return [hello["rank"]]

    def _died(self, what: str = "ended") -> RunError:
        """Return an error with the last output of the team."""
        self._output.seek(0)
        return RunError(
            f"{self.name} {what}: {_last_words(self._output.read().decode(errors='replace'))}"
        )


def _last_words(spoken: str) -> str:
    """Return the last line; for a crash also its name and the Python location."""
    lines = [line.strip() for line in spoken.split("\n") if line.strip()]
    crash = next((at for at, line in enumerate(lines) if line.startswith("Fatal Python")), None)
    if crash is None:
        return lines[-1] if lines else "no word"
    frames = [line for line in lines[crash:] if line.startswith("File ")]
    return "; ".join([*lines[max(0, crash - 1) : crash + 1], *frames[:_FRAMES]])


def _is_ours(line: socket.socket) -> bool:
    """Return whether the other end belongs to the same user."""
    credentials = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", credentials)[1] == os.getuid())


def _end(process: "subprocess.Popen[bytes]", deadline: float) -> None:
    """Wait for a process until the deadline, then kill the rest of its process group.

    Its pid stays valid until it is reaped, so the group is signalled before that.
    """
    for number, seconds in ((0, deadline - time.monotonic()), (signal.SIGTERM, 3.0)):
        if number:
            _signal_group(process.pid, number)
        if _ends_within(process.pid, seconds):
            break
    _signal_group(process.pid, signal.SIGKILL)
    process.wait()


def _ends_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def _signal_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


TORCH_BACKENDS = {"dist": "weft", "gloo": "gloo"}  # the torch.distributed backend of a team


@contextmanager
def started_torch_teams(num_ranks: int) -> Iterator[dict[str, Team]]:
    """Start a team per backend of torch.distributed, by name; all are stopped afterwards."""
    with ExitStack() as stack:
        teams = {}
        for name in TORCH_BACKENDS:
            words = [
                sys.executable,
                "-m",
                "weft.local_runs.torch_planned_rank",
                torch_backend(name),
            ]
            team = Team(name, num_ranks, rank_starts(words, num_ranks))
            teams[name] = stack.enter_context(closing(team))
        yield teams


def rank_starts(
    words: Sequence[str], num_ranks: int, environment: Mapping[str, str] | None = None
) -> list[Start]:
    """Return the start of every rank as a process, with additional environment variables."""
    shared = {
        **(environment or {}),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "TORCHELASTIC_RUN_ID": secrets.token_hex(16),
        "WORLD_SIZE": str(num_ranks),
        "LOCAL_WORLD_SIZE": str(num_ranks),
    }
    ranks = [{"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(num_ranks)]
    return [Start(leashed(words), shared | rank) for rank in ranks]


def torch_backend(name: str) -> str:
    """Return the torch.distributed backend of a team."""
    if find_spec("torch") is None:
        raise RunError(f"{name} needs torch.", "Run pip install 'weft[torch]'.")
    return TORCH_BACKENDS[name]
