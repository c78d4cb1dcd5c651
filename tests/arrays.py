"""The reference interpreter: schedules on plain arrays, in any order that the flags allow.

It lets threads run in random turns, some a command long and some as far as they get, so
that a schedule that only works when ranks keep step fails here. Nothing is fast and
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
    Copy,
    Decode,
    Encode,
    Kernel,
    Launch,
    Place,
    Reduce,
    Schedule,
    Signal,
    Submit,
    Swap,
    Wait,
    write_out,
)
from weft.schedule.schedule import commands_of

Bytes = NDArray[Any]  # of uint8
Flag = tuple[int, int]
Op = Callable[[Any, Any], None]  # what it reads, what it writes
OPS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "prod": np.multiply,
}


@dataclass
class Thread:
    """A queue or a lane: its commands, the lanes its launches start, how far it has come."""

    commands: list[tuple[Place, Command, int]] = field(default_factory=list)  # with fed numbers
    lanes: dict[int, list[Thread]] = field(default_factory=lambda: defaultdict(list))  # by id
    next: int = 0
    running: list[Thread] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.next == len(self.commands)


class Machine:
    """Memory, flags and queues of all ranks; ``run`` executes the schedule once more."""

    def __init__(
        self, schedule: Schedule, seed: int = 0, ops: Mapping[str, Op] | None = None
    ) -> None:
        self.random = random.Random(seed)
        self.ops = ops or {}
        table = write_out(schedule)
        self.memory: dict[tuple[int, str], Bytes] = {
            (rank, b.name): np.zeros(b.size_on(rank), np.uint8)
            for b in table.schedule.buffers
            for rank in range(schedule.num_ranks)
        }
        self.threads = [Thread() for _ in table.thread_rank]
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
        self.flags: Counter[Flag] = Counter()
        self.order: list[Place] = []

    def run(self) -> None:
        self.base = self.flags.copy()
        self.handed: dict[Any, list[tuple[int, Flag | None]]] = defaultdict(list)
        for thread in self.threads:
            thread.next = 0
        ready, blocked = list(self.queues), []
        while ready:
            thread = ready.pop(self.random.randrange(len(ready)))
            moved = self._turn(thread)
            if not thread.done:
                blocked.append(thread)
            if moved:
                ready += blocked + thread.running
                blocked = []
        assert not blocked, f"stuck at {[t.commands[t.next][:2] for t in blocked]}"

    def _turn(self, thread: Thread) -> bool:
        """Let a thread run for a while; False where it cannot move."""
        before, started = thread.next, False
        for _ in range(self.random.choice((1, 2, 1000))):
            if thread.done or any(not lane.done for lane in thread.running):
                break
            place, command, fed = thread.commands[thread.next]
            if not self._may(place, command, fed):
                break
            if isinstance(command, Launch) and not thread.running and thread.lanes[place.id]:
                thread.running, started = thread.lanes[place.id], True
                break
            thread.running = []
            self._execute(command)
            self.order.append(place)
            thread.next += 1
        return started or thread.next > before

    def _may(self, place: Place, command: Command, fed: int) -> bool:
        key = (place.rank, place.queue)
        if fed >= 0 and key in self.fed_queues and not self._handed_over(key, fed):
            return False
        if isinstance(command, Wait):
            return self._count(command.flag) >= int(command.count)  # type: ignore[arg-type]
        return True

    def _handed_over(self, key: tuple[int, str], fed: int) -> bool:
        for count, hold in self.handed[key]:
            if fed < count:
                return hold is None or self._count(hold) >= 1
            fed -= count
        return False

    def _count(self, flag: Any) -> int:
        """How often a flag was raised in this execution."""
        key = (flag.rank, flag.index)
        return self.flags[key] - self.base[key]

    def at(self, s: Any) -> Bytes:
        whole = self.memory[s.rank, s.buffer]
        assert 0 <= s.offset <= s.offset + s.nbytes <= len(whole), (s, len(whole))
        return whole[s.offset : s.offset + s.nbytes]

    def _execute(self, command: Command) -> None:  # noqa: C901, PLR0912 - one case a command
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
                self.flags[command.flag.rank, command.flag.index] += 1  # type: ignore[index]
            case Submit():
                key = (command.rank, command.queue)
                self.handed[key].append((command.count, command.hold))  # type: ignore[arg-type]
            case _:
                pass
