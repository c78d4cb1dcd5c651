"""A user with a world, and another on the same machine who tries to read and to disturb it.

``python -m tests.hostile.two_users`` prints a line of JSON: what the other managed to do, which
must be nothing, and what the ranks computed meanwhile. Needs root, to become both.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import weft
from tests.soak.forks import forked
from weft._core import die_with
from weft.runtime import World
from weft.runtime.communicator import create_segment
from weft.runtime.stale_segments import PREFIX, SHARED_MEMORY, remove_stale_segments

OWNER, OTHER = 64001, 64002  # users that nobody has
RANKS = 2
SECRET = b"this is what only the owner's ranks may read"
_PR_SET_DUMPABLE = 4  # linux/prctl.h


def become(user: int) -> None:
    """Be another user for good, and as an ordinary login of it would be."""
    if os.geteuid() == user:
        return
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def child(user: int, run: Callable[[int, int], Any]) -> tuple[int, int, int]:
    """Fork as a user; return its pid, a pipe to hear it and one to tell it something."""
    parent, (hear, say), (listen, tell) = os.getpid(), os.pipe(), os.pipe()

    def be_user() -> None:
        become(user)
        if die_with(parent):  # again: who becomes another user outlives its parent
            run(listen, say)

    pid = forked(be_user)
    os.close(say)
    os.close(listen)
    return pid, hear, tell


def rank_main(name: str, rank: int, listen: int, say: int) -> None:
    """Keep a secret in private and in shared memory; compute before and after the attack."""
    secret = np.frombuffer(SECRET, np.uint8).copy()
    with World(name, rank, timeout=30) as world:
        out = np.empty(RANKS * len(secret), np.uint8)
        world.all_gather(out, secret)
        mapped = [
            line for line in Path("/proc/self/maps").read_text().splitlines() if PREFIX in line
        ]
        about = {"pid": os.getpid(), "at": secret.ctypes.data, "maps": mapped}
        os.write(say, json.dumps(about).encode() + b"\n")
        os.read(listen, 1)  # the other has done what he could
        x = np.full(1000, rank + 1.0)
        world.all_reduce(x)
        good = bool((x == 3).all() and out.tobytes() == SECRET * RANKS)
        os.write(say, json.dumps(good).encode() + b"\n")


def attack(targets: list[dict[str, Any]], names: list[str]) -> list[str]:
    """Try everything that an ordinary user can; return what worked."""
    found = {*names, *(path.name for path in SHARED_MEMORY.glob(f"{PREFIX}*"))}
    tries = {
        f"{what} {where}": attempt
        for where, known in (
            *((target["pid"], _on_process(target["pid"], target["at"])) for target in targets),
            *((name, _on_segment(name)) for name in found),
        )
        for what, attempt in known.items()
    }
    worked = [what for what, attempt in tries.items() if _works(attempt)]
    return worked + [f"cleaned {name}" for name in remove_stale_segments()]


def _on_process(pid: int, place: int) -> dict[str, Callable[[], object]]:
    return {
        "signal": partial(os.kill, pid, signal.SIGSTOP),
        "mem of": partial(_peek, pid, place),
        "read of": partial(_read, pid, place),
        "maps of": lambda: list(Path(f"/proc/{pid}/map_files").iterdir()),
        "descriptors of": lambda: list(Path(f"/proc/{pid}/fd").iterdir()),
    }


def _on_segment(name: str) -> dict[str, Callable[[], object]]:
    path = SHARED_MEMORY / name
    return {
        "open": lambda: os.close(os.open(path, os.O_RDONLY)),
        "write": lambda: os.close(os.open(path, os.O_RDWR)),
        "remove": path.unlink,
        "join": partial(World, f"/{name}", 0, timeout=1),
    }


def _works(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except (OSError, RuntimeError):
        return False
    return True


def _peek(pid: int, place: int) -> None:
    with Path(f"/proc/{pid}/mem").open("rb") as file:
        file.seek(place)
        file.read(len(SECRET))


def _read(pid: int, place: int) -> None:
    class Part(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))

    room = ctypes.create_string_buffer(len(SECRET))
    here = Part(ctypes.cast(room, ctypes.c_void_p), len(SECRET))
    there = Part(place, len(SECRET))
    call = ctypes.CDLL(None).process_vm_readv
    call.restype = ctypes.c_ssize_t
    if call(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) <= 0:
        raise PermissionError


def lead(listen: int, say: int) -> None:
    """As the owner: start two ranks, say who they are, and after the attack what they computed."""
    launcher = create_segment(RANKS)
    try:
        segments = [path.name for path in SHARED_MEMORY.glob(f"{PREFIX}*")]
        ranks = [child(OWNER, partial(rank_main, launcher.name, rank)) for rank in range(RANKS)]
        about = [json.loads(_line(hear)) for _, hear, _ in ranks]
        os.write(say, json.dumps({"ranks": about, "names": segments}).encode() + b"\n")
        os.read(listen, 1)
        for _, _, tell in ranks:
            os.write(tell, b"x")
        good = [json.loads(_line(hear)) for _, hear, _ in ranks]
        for pid, _, _ in ranks:
            os.waitpid(pid, 0)
    finally:
        launcher.close()
    os.write(say, json.dumps(good).encode() + b"\n")


def _line(pipe: int) -> bytes:
    text = b""
    while not text.endswith(b"\n"):
        piece = os.read(pipe, 1 << 16)
        if not piece:
            sys.exit("a process ended without a word")
        text += piece
    return text


def main() -> dict[str, Any]:
    """Be root, and start both users."""
    assert callable(weft.world)  # what is imported later could not be read by the users
    owner, hear, tell = child(OWNER, lead)
    about = json.loads(_line(hear))

    def other(_: int, say: int) -> None:
        found = attack(about["ranks"], about["names"])
        os.write(say, json.dumps(found).encode() + b"\n")

    enemy, hear_enemy, _ = child(OTHER, other)
    worked = json.loads(_line(hear_enemy))
    os.write(tell, b"x")
    good = json.loads(_line(hear))
    for pid in (owner, enemy):
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
    left = [path.name for path in SHARED_MEMORY.glob(f"{PREFIX}*") if path.stat().st_uid == OWNER]
    return {"worked": worked, "good": good, "seen": about["names"], "left": left}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main()))
