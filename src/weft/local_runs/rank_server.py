"""A rank of a contestant: asleep until it is asked, then it works, answers and sleeps again.

Needs the standard library alone, so that peers in other environments speak it too. Requests
and answers are lines of JSON over a socket; its end is the end of the rank.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol


class Work(Protocol):
    """Something a rank can do again and again together with the others."""

    @property
    def act(self) -> Callable[[], Any]:
        """Do it once."""

    @property
    def free(self) -> Callable[[], Any]:
        """Return its memory back."""

    def answer(self) -> Any:
        """Do it so that it can be checked; give what the check found."""


class Rank(Protocol):
    """One rank of a contestant."""

    rank: int
    about: str

    def barrier(self) -> None:
        """Meet the others."""

    def open(self, case: dict[str, Any]) -> Work:
        """Make what a case needs."""


def serve(address: str, rank: Rank) -> None:
    """Do what is asked until nobody asks any more. ``address`` is a name, or the path of a file."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(address if address.startswith("/") else f"\0{address}")
        with line.makefile("r", encoding="utf-8") as ears, line.makefile("w") as mouth:
            _say(mouth, {"rank": rank.rank, "about": rank.about})
            works: dict[str, Work] = {}
            # Reading blocks in the kernel: a rank that is not asked costs the others nothing.
            for text in ears:
                _say(mouth, _reply(rank, works, json.loads(text)))


def _say(mouth: IO[str], reply: dict[str, Any]) -> None:
    mouth.write(json.dumps(reply) + "\n")
    mouth.flush()


def _reply(rank: Rank, works: dict[str, Work], asked: dict[str, Any]) -> dict[str, Any]:
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
    except Exception as error:  # noqa: BLE001 - whoever asked says what it was
        return {"error": f"{type(error).__name__}: {error}"}


def pin(rank: int) -> None:
    """Keep the calling thread on one core; threads that it has started stay free."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def received() -> int:
    """Count the bytes that came to this host by any of its links, the one to itself left out."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()
    links = (line.split(":") for line in lines if ":" in line)
    return sum(int(counts.split()[0]) for name, counts in links if name.strip() != "lo")


def _timed(rank: Rank, work: Work, calls: int) -> float:
    """Return the seconds of one call; many calls begin with one that is not counted."""
    act = work.act
    if (ready := getattr(work, "ready", None)) is not None:
        ready()  # what a call needs and does not take time for
    rank.barrier()
    if calls > 1:
        act()
        rank.barrier()
    begin = time.perf_counter()
    for _ in range(calls):
        act()
    return (time.perf_counter() - begin) / calls
