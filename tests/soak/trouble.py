"""Ranks in traffic of which one, or all, come to harm; what the others are told.

``python -m tests.soak.trouble SEED COUNT [torch]`` prints one line of JSON for each trial.
Ranks are forked by a process that has one thread and no world: a start costs no imports.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import weft.torch
from tests.runtime.leftovers import eventually, files, threads
from tests.soak.calls import Bench, Flight, by_torch, by_world
from tests.soak.plan import Plan, Step
from tests.soak.rooms import Rooms
from tests.soak.values import case_of
from weft._core import die_with
from weft.errors import RunError
from weft.runtime import World
from weft.runtime.communicator import create_segment
from weft.runtime.stale_segments import PREFIX, SHARED_MEMORY

BY_SIGNAL = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}
BY_RANK = ("raise", "exit", "other collective", "other size", "other dtype")
TROUBLES = (*BY_SIGNAL, *BY_RANK, "kill all", *BY_SIGNAL)
TOLD = {
    "kill": "RankDiedError",
    "exit": "RankDiedError",
    "stop": "RunTimeoutError",
    "raise": "RunError",
    "other collective": "DisagreeError",
    "other size": "DisagreeError",
    "other dtype": "DisagreeError",
}
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_TIMEOUT = 60.0  # seconds until a rank that says nothing is a failure of the trial


@dataclass(frozen=True)
class Trial:
    """One world and what happens in it."""

    seed: int
    num_ranks: int
    trouble: str
    victim: int
    after: float  # seconds of traffic, for what comes from outside
    at: int  # the step, for what a rank does itself
    by_torch: bool

    @property
    def timeout(self) -> float:
        """Seconds: a rank that is only slow must not look like one that stands still."""
        return 4.0 if self.trouble == "stop" else 30.0

    @property
    def by_environment(self) -> bool:
        """Whether the ranks find each other as those of torchrun do."""
        return self.trouble == "kill all" and self.seed % 2 == 0

    @classmethod
    def drawn(cls, seed: int, number: int, *, by_torch: bool) -> Trial:
        dice = random.Random(f"{seed} {number}")
        num_ranks = dice.randint(2, 4)
        return cls(
            seed=dice.randrange(1 << 30),
            num_ranks=num_ranks,
            trouble=TROUBLES[number % len(TROUBLES)],
            victim=dice.randrange(num_ranks),
            after=dice.random(),
            at=dice.randrange(60),
            by_torch=by_torch and dice.random() < 0.5,
        )


class Harm(Exception):  # noqa: N818 - it is what a rank raises, no error of the tests
    """What a rank raises of its own will."""


def churn(world: World, trial: Trial) -> None:
    """Make calls without end; the victim does what the trial says."""
    place = "torch" if trial.by_torch else "world"
    plan = Plan(trial.seed, {place: world.num_ranks}, asks=20, largest=64 << 10)
    dice = random.Random(f"{trial.seed} of rank {world.rank}")
    rooms = Rooms(world, 4 << 20)
    flights: list[Flight] = []
    harmed = False
    for number in itertools.count():
        step = plan.draw()
        if trial.trouble in BY_RANK and not harmed and number >= trial.at:
            harmed = world.rank == trial.victim and step.ask.kind not in ("message", "exchange")
            step = harm(trial, step) if harmed else step
        case = case_of(step.ask, world.num_ranks, world.rank, step.seed)
        if not rooms.has(sum(each.nbytes + 256 for side in case for each in side)):
            land(flights)
            rooms.restart()
        bench = Bench(rooms, dice)
        if trial.by_torch:
            flights.append(by_torch(dist.group.WORLD, step, case, bench))
        else:
            flights.append(by_world(world, step, case, bench))
        if not step.later or len(flights) > 4:
            land(flights)


def land(flights: list[Flight]) -> None:
    for flight in flights:
        if not flight.land():
            message = f"a byte is wrong: {flight.step}"
            raise AssertionError(message)
    flights.clear()


def harm(trial: Trial, step: Step) -> Step:
    """Do what the victim does itself, or give the wrong step that it takes."""
    ask = replace(step.ask, algorithm="")
    match trial.trouble:
        case "raise":
            raise Harm("enough")
        case "exit":
            os._exit(7)
        case "other collective":
            other = "barrier" if ask.kind != "barrier" else "broadcast"
            return step._replace(ask=replace(ask, kind=other))
        case "other size" if ask.kind != "barrier":
            return step._replace(ask=replace(ask, count=ask.count + 1))
    if ask.kind == "barrier":
        return step._replace(ask=replace(ask, kind="broadcast"))
    dtype = "int32" if ask.dtype != "int32" else "float32"
    return step._replace(ask=replace(ask, dtype=dtype, op="sum" if ask.op else ""))


def rank_main(trial: Trial, name: str, rank: int, store: str, tell: int) -> None:
    """Live as a rank, and tell how it ended."""
    one, began = threads(), time.monotonic()
    answer: dict[str, Any]
    try:
        with joined(trial, name, rank, store) as world:
            os.write(tell, f"{segments()}\n".encode())
            churn(world, trial)
    except RunError as error:
        answer = {"kind": type(error).__name__, "text": str(error), "recent": list(error.recent)}
    except BaseException as error:  # noqa: BLE001 - told home
        answer = {"kind": type(error).__name__, "text": str(error)}
        if not isinstance(error, Harm):
            answer["trace"] = traceback.format_exc()
    if trial.by_torch and dist.is_initialized():
        dist.destroy_process_group()
    answer["seconds"] = round(time.monotonic() - began, 2)
    # A thread that was joined stays in /proc until it had its core once more.
    eventually(lambda: threads() <= one, 1)
    answer["threads"] = threads() - one
    os.write(tell, json.dumps(answer).encode() + b"\n")


def segments() -> str:
    """The names of the segments that this process has mapped."""
    maps = Path("/proc/self/maps").read_text()
    return " ".join({word for word in maps.split() if word.startswith(f"{SHARED_MEMORY}/{PREFIX}")})


def joined(trial: Trial, name: str, rank: int, store: str) -> World:
    if trial.by_environment:
        os.environ |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(trial.num_ranks),
            "LOCAL_WORLD_SIZE": str(trial.num_ranks),
            "TORCHELASTIC_RUN_ID": str(trial.seed),
        }
        return weft.world(timeout=trial.timeout)
    if not trial.by_torch:
        return World(name, rank, timeout=trial.timeout)
    dist.init_process_group(
        "weft",
        store=dist.FileStore(store, trial.num_ranks),  # type: ignore[attr-defined]
        rank=rank,
        world_size=trial.num_ranks,
        timeout=timedelta(seconds=trial.timeout),
    )
    return weft.torch.world_of()


class Ranks:
    """The forked ranks of a trial, and what they say."""

    def __init__(self, trial: Trial, name: str, store: str) -> None:
        parent = os.getpid()
        self.pids: list[int] = []
        self._pipes: list[int] = []
        self._said: list[bytes] = [b""] * trial.num_ranks
        for rank in range(trial.num_ranks):
            hear, tell = os.pipe()
            pid = os.fork()
            if pid == 0:
                try:
                    if die_with(parent):
                        rank_main(trial, name, rank, store, tell)
                finally:
                    os._exit(0)
            os.close(tell)
            self.pids.append(pid)
            self._pipes.append(hear)

    def hear(self, ranks: list[int], lines: int) -> bool:
        """Wait until these have said so many lines, or are gone."""
        deadline = time.monotonic() + _TIMEOUT
        waiting = {self._pipes[rank]: rank for rank in ranks if self._lines(rank) < lines}
        while waiting and (left := deadline - time.monotonic()) > 0:
            for pipe in select.select(list(waiting), [], [], left)[0]:
                text = os.read(pipe, 1 << 16)
                rank = waiting[pipe]
                self._said[rank] += text
                if not text or self._lines(rank) >= lines:
                    del waiting[pipe]
        return not waiting

    def _lines(self, rank: int) -> int:
        return self._said[rank].count(b"\n")

    def answer(self, rank: int) -> dict[str, Any]:
        said = self._said[rank].splitlines()
        return json.loads(said[1]) if len(said) > 1 else {"kind": "", "text": "said nothing"}

    def segments(self) -> set[str]:
        """The segments of those who came."""
        return {name for said in self._said for name in said.decode().split("\n")[0].split()}

    def signal(self, number: int, ranks: list[int]) -> None:
        for rank in ranks:
            os.kill(self.pids[rank], number)

    def end(self) -> None:
        for pid, pipe in zip(self.pids, self._pipes, strict=True):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(pipe)


def carry_out(trial: Trial) -> dict[str, Any]:
    """Run one trial; ``wrong`` says what is not as it should be."""
    if trial.trouble == "kill all":
        return kill_all(trial)
    everyone = list(range(trial.num_ranks))
    others = [rank for rank in everyone if rank != trial.victim]
    with tempfile.TemporaryDirectory() as folder:
        launcher = create_segment(trial.num_ranks)
        ranks = Ranks(trial, launcher.name, str(Path(folder) / "store"))
        try:
            wrong = [] if ranks.hear(everyone, 1) else ["a rank did not come"]
            if trial.trouble in BY_SIGNAL:
                time.sleep(trial.after)
                ranks.signal(BY_SIGNAL[trial.trouble], [trial.victim])
            wrong += [] if ranks.hear(others, 2) else ["a survivor said nothing"]
            answers = [ranks.answer(rank) for rank in others]
            wrong += [line for answer in answers for line in complaints(trial, answer)]
            if trial.trouble == "stop":
                ranks.signal(signal.SIGCONT, [trial.victim])
                wrong += [] if ranks.hear([trial.victim], 2) else ["who was stopped never ended"]
                answers.append(ranks.answer(trial.victim))
        finally:
            ranks.end()
            launcher.close()
        left = [name for name in ranks.segments() if Path(name).exists()]
    wrong += [f"left behind: {left}"] if left else []
    wrong += [] if ranks.segments() else ["no segment was seen"]
    return {**asdict(trial), "wrong": wrong, "answers": answers}


def kill_all(trial: Trial) -> dict[str, Any]:
    """Kill all ranks and their launcher at once; then start again next to a live world."""
    alive = create_segment(2)
    with tempfile.TemporaryDirectory() as folder:
        leader = os.fork()
        if leader == 0:
            lead(trial, str(Path(folder) / "store"))
        os.setpgid(leader, leader)
        time.sleep(trial.after / 2)  # from before they meet until they are in traffic
        os.killpg(leader, signal.SIGKILL)
        with suppress(ChildProcessError):
            while True:  # orphans are ours, too
                os.waitpid(-1, 0)
    dead = without_owner()
    next_one = create_segment(2)  # cleans up
    left = dead & without_owner()
    wrong = [f"left behind: {left}"] if left else []
    if not (SHARED_MEMORY / alive.name.removeprefix("/")).exists():
        wrong.append("what a live world owns was removed")
    next_one.close()
    alive.close()
    return {**asdict(trial), "wrong": wrong, "answers": [], "dead": len(dead)}


def lead(trial: Trial, store: str) -> None:
    """Start the ranks in a group of processes of their own, and wait."""
    try:
        os.setpgid(0, 0)
        launcher = None if trial.by_environment else create_segment(trial.num_ranks)
        Ranks(trial, launcher.name if launcher else "", store).hear([0], 2)
    finally:
        os._exit(0)


def without_owner() -> set[str]:
    return {name for name in files() if "/" not in name}


def complaints(trial: Trial, answer: dict[str, Any]) -> list[str]:
    """What is missing in what a survivor was told."""
    text = answer["text"]
    wrong = []
    if answer["kind"] != TOLD[trial.trouble]:
        wrong.append(f"told {answer['kind']}: {text} {answer.get('trace', '')}")
    if f"rank {trial.victim}" not in text:
        wrong.append(f"does not name rank {trial.victim}: {text}")
    if trial.trouble != "raise" and "call" not in text:
        wrong.append(f"does not give the number of a call: {text}")
    if answer.get("threads", 0):
        wrong.append(f"{answer['threads']} threads left")
    return wrong


def main(seed: int, count: int, *with_torch: str) -> None:
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in range(count):
        trial = Trial.drawn(seed, number, by_torch=bool(with_torch))
        sys.stdout.write(json.dumps(carry_out(trial)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
