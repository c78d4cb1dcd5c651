"""The reference interpreter: schedules on plain arrays, in any order that the flags allow.

It lets threads run in random turns, some a command long and some as far as they get, and a
rank go on to its next execution when it is through with one, so that a schedule that only
works when ranks keep step fails here. Nothing is fast and
nothing is shared with the other interpreters but the meaning of a command.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.compress import codec_of
from weft.schedule import (
    Broadcast,
    Command,
    CommandLocation,
    Copy,
    Decode,
    Encode,
    Kernel,
    Launch,
    Reduce,
    Schedule,
    Signal,
    Submit,
    Swap,
    Wait,
    expand,
)
from weft.schedule.schedule import commands_of

Bytes = NDArray[Any]  # of uint8
Flag = tuple[int, int]
Op = Callable[[Any, Any], None]  # what it reads, what it writes
Visit = Callable[[int, int], None]  # a rank and the number of its execution
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "prod": np.multiply,
}


@dataclass
class Thread:
    """A queue or a lane: its commands, the lanes its launches start, how far it has come."""

    rank: int
    commands: list[tuple[CommandLocation, Command, int]] = field(
        default_factory=list
    )  # with fed numbers
    lanes: dict[int, list[Thread]] = field(default_factory=lambda: defaultdict(list))  # by id
    next: int = 0
    running: list[Thread] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.next == len(self.commands)


def _nothing(rank: int, execution: int) -> None:
    pass


class Machine:
    """Memory, flags and queues of all ranks; each ``run`` executes the schedule once."""

    def __init__(
        self, schedule: Schedule, seed: int = 0, ops: Mapping[str, Op] | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.ops = ops or {}
        table = expand(schedule)
        self.memory: dict[tuple[int, str], Bytes] = {
            (rank, b.name): np.zeros(b.size_on(rank), np.uint8)
            for b in table.schedule.buffers
            for rank in range(schedule.num_ranks)
        }
        self.threads = [Thread(rank) for rank in table.thread_rank.tolist()]
        self.ranks = range(schedule.num_ranks)
        rows = list(commands_of(table))
        for (place, command), thread, fed in zip(rows, table.thread, table.fed, strict=True):
            self.threads[thread].commands.append((place, command, int(fed)))
        self.queues = []
        for thread, launch in zip(self.threads, table.thread_launch, strict=True):
            if launch < 0:
                self.queues.append(thread)
            else:
                self.threads[table.thread[launch]].lanes[rows[launch][0].id].append(thread)
        submits = [c for _, c in rows if isinstance(c, Submit)]
        self.fed_queues = {(submit.rank, submit.queue) for submit in submits}
        signals = (c.flag for _, c in rows if isinstance(c, Signal))
        self.raised_each = Counter((flag.rank, flag.index) for flag in signals)
        self.flags: Counter[Any] = Counter()
        self.order: list[CommandLocation] = []

    def run(self) -> None:
        """Execute the schedule once more."""
        self.run_ahead(1)

    def run_ahead(self, executions: int, enter: Visit = _nothing, leave: Visit = _nothing) -> None:
        """Make each rank ``enter`` and ``leave`` so often; none waits for others in between."""
        self.base = self.flags.copy()
        self.handed: dict[Any, list[tuple[int, Flag | None]]] = defaultdict(list)
        self.execution = dict.fromkeys(self.ranks, -1)
        ready, blocked = [], []
        for rank in self.ranks:
            ready += self._entered(rank, executions, enter, leave)
        while ready:
            thread = ready.pop(self.random.randrange(len(ready)))
            moved = self._turn(thread)
            if not thread.done:
                blocked.append(thread)
            if moved:
                ready += blocked + thread.running
                blocked = []
            if moved and all(t.done for t in self.queues if t.rank == thread.rank):
                leave(thread.rank, self.execution[thread.rank])
                ready += self._entered(thread.rank, executions, enter, leave)
        assert not blocked, f"stuck at {[t.commands[t.next][:2] for t in blocked]}"

    def _entered(self, rank: int, executions: int, enter: Visit, leave: Visit) -> list[Thread]:
        """Begin the next execution of a rank, if there is one; return its queues."""
        while self.execution[rank] + 1 < executions:
            self.execution[rank] += 1
            enter(rank, self.execution[rank])
            for thread in self.threads:
                if thread.rank == rank:
                    thread.next = 0
            queues = [thread for thread in self.queues if thread.rank == rank and not thread.done]
            if queues:
                return queues
            leave(rank, self.execution[rank])  # it has nothing to do
        return []

    def _turn(self, thread: Thread) -> bool:
        """Run a thread for a while; False where it cannot move."""
        before, started = thread.next, False
        for _ in range(self.random.choice((1, 2, 1000))):
            if thread.done or any(not lane.done for lane in thread.running):
                break
            place, command, fed = thread.commands[thread.next]
            if not self._may(place, command, fed, self.execution[thread.rank]):
                break
            if isinstance(command, Launch) and not thread.running and thread.lanes[place.id]:
                thread.running, started = thread.lanes[place.id], True
                break
            thread.running = []
            self._execute(command, self.execution[thread.rank])
            self.order.append(place)
            thread.next += 1
        return started or thread.next > before

    def _may(self, place: CommandLocation, command: Command, fed: int, execution: int) -> bool:
        key = (place.rank, place.queue)
        if fed >= 0 and key in self.fed_queues and not self._handed_over(key, fed, execution):
            return False
        if isinstance(command, Wait):
            return self._count(command.flag, execution) >= int(command.count)  # type: ignore[arg-type]
        return True

    def _handed_over(self, key: tuple[int, str], fed: int, execution: int) -> bool:
        for count, hold in self.handed[key, execution]:
            if fed < count:
                return hold is None or self._count(hold, execution) >= 1
            fed -= count
        return False

    def _count(self, flag: Any, execution: int) -> int:
        """How often a flag was raised since what the executions before raise it."""
        key = (flag.rank, flag.index)
        return self.flags[key] - self.base[key] - execution * self.raised_each[key]

    def at(self, s: Any) -> Bytes:
        whole = self.memory[s.rank, s.buffer]
        assert 0 <= s.offset <= s.offset + s.nbytes <= len(whole), (s, len(whole))
        return whole[s.offset : s.offset + s.nbytes]

    def _execute(self, command: Command, execution: int) -> None:  # noqa: C901, PLR0912 - one case a command
        match command:
            case Copy(src, dst):
                self.at(dst)[:] = self.at(src).copy()
            case Broadcast(src, dsts):
                for dst in dsts:
                    self.at(dst)[:] = self.at(src)
            case Swap(a, b):
                kept = self.at(a).copy()
                self.at(a)[:] = self.at(b)
                self.at(b)[:] = kept
            case Reduce(srcs, dst, dtype, op):
                total = self.at(srcs[0]).copy().view(dtype)
                for src in srcs[1:]:
                    total = OPS[op](total, self.at(src).copy().view(dtype))
                self.at(dst)[:] = total.view(np.uint8)
            case Encode(src, dst, codec, dtype):
                data, slot = self.at(src).copy(), self.at(dst)
                if codec == "none":  # needs no frame
                    size = len(data)
                    slot[8 : 8 + size] = data
                else:
                    size = codec_of(codec, dtype).encode(data, slot[8:])
                slot[:8] = np.frombuffer(np.uint64(size).tobytes(), np.uint8)
            case Decode(src, dst, codec, dtype):
                slot = self.at(src)
                size = int(slot[:8].copy().view(np.uint64)[0])
                if codec == "none":
                    self.at(dst)[:size] = slot[8 : 8 + size]
                else:
                    codec_of(codec, dtype).decode(slot[8 : 8 + size], self.at(dst))
            case Kernel() if not command.external:
                read, written = map(self.at, command.reads), map(self.at, command.writes)
                self.ops[command.op](list(read), list(written))
            case Signal():
                self.flags[command.flag.rank, command.flag.index] += 1
            case Submit():
                key = (command.rank, command.queue), execution
                self.handed[key].append((command.count, command.hold))  # type: ignore[arg-type]
            case _:
                pass
