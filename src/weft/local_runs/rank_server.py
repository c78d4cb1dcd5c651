"""The server loop of a rank: blocked until a request arrives, then it works and replies.

Uses only the standard library, so that peers in other environments can use it. Requests and replies
are lines of JSON over a socket; the rank exits when it closes.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol


class RankWork(Protocol):
    """Work that a rank can repeat together with the others."""

    @property
    def act(self) -> Callable[[], Any]:
        """Do it once."""

    @property
    def free(self) -> Callable[[], Any]:
        """Release its memory."""

    def answer(self) -> Any:
        """Run the case once and return the result of a check."""


class ServedRank(Protocol):
    """One rank of a team."""

    rank: int
    about: str

    def barrier(self) -> None:
        """Wait for all ranks."""

    def open(self, case: dict[str, Any]) -> RankWork:
        """Prepare the work of a case."""


def serve(address: str, rank: ServedRank) -> None:
    """Serve requests until the connection closes; ``address`` is a name or the path of a file."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address if address.startswith("/") else f"\0{address}")
        with line.makefile("r", encoding="utf-8") as ears, line.makefile("w") as mouth:
            _say(mouth, {"rank": rank.rank, "about": rank.about})
            works: dict[str, RankWork] = {}
            # Reading blocks in the kernel: an idle rank takes no CPU time from the others.
            for text in ears:
                _say(mouth, _reply(rank, works, json.loads(text)))


def _say(mouth: IO[str], reply: dict[str, Any]) -> None:
    mouth.write(json.dumps(reply) + "\n")
    mouth.flush()


def _reply(rank: ServedRank, works: dict[str, RankWork], asked: dict[str, Any]) -> dict[str, Any]:
    name = asked["name"]
    try:
        match asked["do"]:
            case "open":
                works[name] = rank.open(asked["case"])
                return {}
            case "time":
                return {"seconds": _timed(rank, works[name], asked["calls"])}
            case "answer":
                before = received()
                answer = works[name].answer()
                return {"answer": answer, "received": received() - before}
            case "pin":
                pin(rank.rank)
                return {}
            case _:
                works.pop(name).free()
                return {}
    except Exception as error:  # noqa: BLE001 - the caller reports it
        return {"error": f"{type(error).__name__}: {error}"}


def pin(rank: int) -> None:
    """Pin the calling thread to one core; threads that it has started are not affected."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def received() -> int:
    """Return the bytes received by this host on all interfaces but loopback."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    links = (line.split(":") for line in lines if ":" in line)
    return sum(int(counts.split()[0]) for name, counts in links if name.strip() != "lo")


def _timed(rank: ServedRank, work: RankWork, calls: int) -> float:
    """Return the seconds of one call; several calls start with a warm-up."""
    act = work.act
    if (ready := getattr(work, "ready", None)) is not None:
        ready()  # preparation that is not timed
    rank.barrier()
    if calls > 1:
        act()
        rank.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        act()
    return (time.perf_counter() - begin) / calls
