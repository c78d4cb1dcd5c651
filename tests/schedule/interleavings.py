"""Small schedules drawn at random, and a model that tries every interleaving of their commands.

The model shares nothing with ``check`` but the meaning of a command. A schedule races if two
commands that touch the same bytes, one of them writing, can be next at the same time, or if one
can touch the bytes of a rank that has not entered or has left, which belong to its caller then.
"""

from __future__ import annotations

import random
from collections import Counter
from itertools import combinations
from typing import Any, NamedTuple

from weft.schedule import (
    WRITE,
    Buffer,
    Copy,
    Flag,
    Launch,
    Program,
    Queue,
    Reduce,
    Schedule,
    Signal,
    Slice,
    Submit,
    Swap,
    Wait,
    expand,
)
from weft.schedule.accesses import accesses
from weft.schedule.schedule import commands_of
from weft.schedule.values import as_int

BYTES = 4
MOST_STATES = 40_000
State = tuple[int, ...]


def drawn(seed: int) -> Schedule:
    """Return a schedule of one to three ranks with several queues.

    It is written along one order in which it does not block; whether others race or block is open.
    """
    rng = random.Random(seed)
    num_ranks, num_flags = rng.choice((1, 2, 2, 2, 3)), rng.choice((2, 3, 4))
    names = rng.sample(["copy0", "copy1", "nic0", "stream0", "stream1"], rng.choice((1, 2, 2)))
    queues: dict[tuple[int, str], list[Any]] = {
        (rank, name): [] for rank in range(num_ranks) for name in names
    }
    raised: Counter[tuple[int, int]] = Counter()
    asked: set[tuple[int, int]] = set()
    for _ in range(rng.randint(3, 5 + 2 * num_ranks)):
        (rank, name), commands = rng.choice(list(queues.items()))
        kind = rng.choice(("move", "signal", "signal", "wait", "wait"))
        waiting = [flag for flag in raised if flag[0] == rank]
        if kind == "move":
            commands.append(_move(rng, rank, num_ranks, name))
        elif kind == "signal":
            flag = rng.randrange(num_ranks), rng.randrange(num_flags)
            raised[flag] += 1
            commands.append(Signal(Flag(*flag)))
        elif waiting:
            flag = rng.choice(waiting)
            asked.add(flag)
            commands.append(Wait(Flag(*flag), rng.choice((raised[flag], 1))))
    fed = [key for key, commands in queues.items() if commands and rng.random() < 0.2]
    programs = []
    for rank in range(num_ranks):
        mine = [Queue(name, tuple(c)) for (r, name), c in queues.items() if r == rank and c]
        host = [
            Submit(rank, name, len(queues[rank, name]), _hold(rng, raised))
            for r, name in fed
            if r == rank
        ]
        mine += [Queue("host", tuple(host))] if host else []
        programs.append(Program((rank,), tuple(mine)))
    buffers = Buffer("x", BYTES, "inout"), Buffer("y", BYTES)
    return Schedule(f"drawn {seed}", num_ranks, tuple(programs), buffers, num_flags)


def _hold(rng: random.Random, raised: Counter[tuple[int, int]]) -> Flag | None:
    return Flag(*rng.choice(list(raised))) if raised and rng.random() < 0.3 else None


def _move(rng: random.Random, rank: int, num_ranks: int, queue: str) -> Any:
    def part(rank: int, nbytes: int) -> Slice:
        return Slice(rank, rng.choice("xy"), rng.randrange(BYTES - nbytes + 1), nbytes)

    nbytes = rng.choice((1, 2, BYTES))
    peer = rng.randrange(num_ranks)
    command = Copy(part(rank, nbytes), part(peer, nbytes))
    if rng.random() < 0.4:
        command = Copy(command.dst, command.src)
    if not queue.startswith("stream"):
        return command
    if rng.random() < 0.3:
        return Reduce((part(rank, nbytes), part(peer, nbytes)), Slice(rank, "y", 0, nbytes))
    lanes = ((command,), (Swap(part(rank, 1), part(peer, 1)),))
    return Launch(lanes if rng.random() < 0.5 else lanes[:1], units=1)


class Step(NamedTuple):
    """A command of a thread and what it touches: rank, buffer, first byte, end, whether written."""

    command: Any
    rank: int
    fed: int
    row: int
    touches: tuple[tuple[int, str, int, int, bool], ...]


class Model:
    """All states that a schedule can reach in some executions, each rank at its own speed.

    A state has for each thread how many of its commands were begun in all executions; a launch
    counts twice, when it starts its lanes and when they have ended. In front stand the executions
    that each rank has entered.
    """

    def __init__(self, schedule: Schedule, executions: int) -> None:
        table = expand(schedule)
        self.executions, self.num_ranks = executions, schedule.num_ranks
        self.threads: list[list[Step]] = [[] for _ in table.thread_rank]
        self.rank_of: list[int] = table.thread_rank.tolist()
        self.launch_of = table.thread_launch.tolist()
        self.queue_of = [
            (int(r), int(q)) for r, q in zip(table.thread_rank, table.thread_queue, strict=True)
        ]
        self.queue_number = {name: number for number, name in enumerate(table.queues)}
        for row, (place, command) in enumerate(commands_of(table)):
            touches = tuple(
                (as_int(s.rank), s.buffer, first, first + as_int(s.nbytes), bool(mode & WRITE))
                for mode, s in accesses(command)
                for first in [as_int(s.offset)]
            )
            thread, fed = int(table.thread[row]), int(table.fed[row])
            step = Step(command, place.rank, fed, row, touches)
            self.threads[thread] += [step] * (2 if isinstance(command, Launch) else 1)
        signals = [s.command for t in self.threads for s in t if isinstance(s.command, Signal)]
        self.each = Counter((s.flag.rank, s.flag.index) for s in signals)
        self.places = {
            step.row: (number, at)
            for number, steps in enumerate(self.threads)
            for at, step in reversed(list(enumerate(steps)))
        }
        submits = [s.command for t in self.threads for s in t if isinstance(s.command, Submit)]
        self.is_fed = {(s.rank, self.queue_number[s.queue]) for s in submits}

    def verdict(self) -> str:
        """Return ``race``, ``deadlock``, ``good``, or ``unknown`` if there are too many states."""
        first = (0,) * (self.num_ranks + len(self.threads))
        seen, pending = {first}, [first]
        verdict = "good"
        while pending:
            state = pending.pop()
            able = self._able(state)
            if self._races(state, able):
                return "race"
            following = [self._after(state, thread) for thread in able] + self._entered(state)
            if not following and not self._over(state):
                verdict = "deadlock"
            for each in following:
                if each not in seen:
                    seen.add(each)
                    pending.append(each)
            if len(seen) > MOST_STATES:
                return "unknown"
        return verdict

    def _at(self, state: State, thread: int) -> int:
        """Return how far a thread is in the execution that its rank is in."""
        rank = self.rank_of[thread]
        done: int = state[self.num_ranks + thread]
        return done - (state[rank] - 1) * len(self.threads[thread])

    def _inside(self, state: State, rank: int) -> bool:
        return state[rank] > 0 and any(
            self._at(state, t) < len(self.threads[t])
            for t in range(len(self.threads))
            if self.rank_of[t] == rank
        )

    def _entered(self, state: State) -> list[State]:
        return [
            (*state[:rank], state[rank] + 1, *state[rank + 1 :])
            for rank in range(self.num_ranks)
            if state[rank] < self.executions and not self._inside(state, rank)
        ]

    def _over(self, state: State) -> bool:
        return not any(self._inside(state, r) for r in range(self.num_ranks)) and not self._entered(
            state
        )

    def _after(self, state: State, thread: int) -> State:
        at = self.num_ranks + thread
        return (*state[:at], state[at] + 1, *state[at + 1 :])

    def _count(self, state: State, flag: Any, execution: int) -> int:
        """Return the signals of a flag beyond those of the executions before."""
        number = 0
        for thread, steps in enumerate(self.threads):
            mine = [isinstance(s.command, Signal) and s.command.flag == flag for s in steps]
            if any(mine):
                whole, rest = divmod(state[self.num_ranks + thread], len(steps))
                number += whole * sum(mine) + sum(mine[:rest])
        return number - (execution - 1) * self.each[flag.rank, flag.index]

    def _able(self, state: State) -> list[int]:
        return [t for t in range(len(self.threads)) if self._may(state, t)]

    def _may(self, state: State, thread: int) -> bool:
        rank, steps = self.rank_of[thread], self.threads[thread]
        if state[rank] == 0 or not steps or (at := self._at(state, thread)) >= len(steps):
            return False
        launch = self.launch_of[thread]
        if launch >= 0:  # a lane runs between the two steps of its launch
            parent, first = self.places[launch]
            if self._at(state, parent) != first + 1:
                return False
        step, execution = steps[at], state[rank]
        ends = at > 0 and steps[at - 1] is step  # the end of a launch
        if ends:
            lanes = [t for t, row in enumerate(self.launch_of) if row == step.row]
            return all(self._at(state, t) == len(self.threads[t]) for t in lanes)
        if isinstance(step.command, Wait):
            return self._count(state, step.command.flag, execution) >= as_int(step.command.count)
        if step.fed >= 0 and self.queue_of[thread] in self.is_fed:
            return self._handed_over(state, thread, step.fed, execution)
        return True

    def _handed_over(self, state: State, thread: int, fed: int, execution: int) -> bool:
        for host, steps in enumerate(self.threads):
            for at, step in enumerate(steps):
                command = step.command
                if not isinstance(command, Submit):
                    continue
                if (command.rank, self.queue_number[command.queue]) != self.queue_of[thread]:
                    continue
                if fed < as_int(command.count):
                    held = (
                        command.hold is not None and self._count(state, command.hold, execution) < 1
                    )
                    return self._at(state, host) > at and not held
                fed -= as_int(command.count)
        return False

    def _races(self, state: State, able: list[int]) -> bool:
        next_steps = [
            step
            for thread in able
            for step in [self.threads[thread][self._at(state, thread)]]
            if step.touches
        ]
        for step in next_steps:
            for owner, *_ in step.touches:
                if owner != step.rank and not self._inside(state, owner):
                    return True
        return any(
            a[0] == b[0] and a[1] == b[1] and a[2] < b[3] and b[2] < a[3] and (a[4] or b[4])
            for one, other in combinations(next_steps, 2)
            for a in one.touches
            for b in other.touches
        )
