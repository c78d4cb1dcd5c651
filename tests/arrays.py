"""The reference interpreter: schedules on plain arrays, in any order that the flags allow.

It picks the next runnable command at random, so that a schedule that only works when ranks
keep step fails here. Nothing is fast and nothing is shared with the other interpreters but
the meaning of a command.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

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
    Scope,
    Signal,
    Slice,
    Submit,
    Swap,
    Wait,
    write_out,
)

Arrays = dict[tuple[int, str], np.ndarray]
OPS = {"sum": np.add, "min": np.minimum, "max": np.maximum, "prod": np.multiply}


@dataclass
class Thread:
    """A queue or a lane: what is left of it, and what it waits for."""

    place: Place
    commands: list[tuple[Command, int, int]]  # command, fed number, row
    lanes: list[Thread] = field(default_factory=list)
    next: int = 0

    @property
    def done(self) -> bool:
        return self.next == len(self.commands) and all(lane.done for lane in self.lanes)


class Machine:
    """Memory, flags and queues of all ranks; ``run`` executes the schedule once more."""

    def __init__(self, schedule: Schedule, seed: int = 0, ops: dict | None = None) -> None:
        self.schedule = schedule
        self.random = random.Random(seed)
        self.ops = ops or {}
        self.table = write_out(schedule, ())
        flat = self.table.schedule
        self.memory: Arrays = {
            (rank, b.name): np.zeros(b.size_on(rank), np.uint8)
            for b in flat.buffers
            for rank in range(flat.num_ranks)
        }
        self.flags: Counter[tuple[int, int]] = Counter()
        self.base: Counter[tuple[int, int]] = Counter()
        self.order: list[Place] = []

    def run(self) -> None:
        self.base = Counter(self.flags)
        self.handed: Counter[tuple[int, str]] = Counter()
        self.holds: dict[tuple[int, str], list[tuple[int, tuple[int, int] | None]]] = {}
        queues = [queue for rank in range(self.schedule.num_ranks) for queue in self._queues(rank)]
        self.fed_queues = {
            (c.rank, c.queue)
            for q in queues
            for c, _, _ in q.commands
            if isinstance(c, Submit)
        }
        while True:
            live = [t for q in queues for t in (q, *q.lanes) if t.next < len(t.commands)]
            if not live:
                return
            self.random.shuffle(live)
            if not any(self._step(t) for t in live):
                raise AssertionError(f"stuck at {[t.commands[t.next] for t in live]}")

    def _queues(self, rank: int) -> list[Thread]:
        table = write_out(self.schedule, [rank])
        queues: dict[str, Thread] = {}
        self.children: dict[tuple[int, str, int], list[Thread]]
        self.children = getattr(self, "children", {})
        launch = 0
        for row, (place, command) in enumerate(self.schedule.commands([rank])):
            if place.lane < 0:
                queue = queues.setdefault(place.queue, Thread(place, []))
                queue.commands.append((command, int(table.fed[row]), place.id))
                if isinstance(command, Launch):
                    launch = place.id
                    self.children[rank, place.queue, launch] = []
                continue
            lanes = self.children[rank, place.queue, launch]
            if not lanes or lanes[-1].place.lane != place.lane:
                lanes.append(Thread(place, []))
            lanes[-1].commands.append((command, -1, place.id))
        return list(queues.values())

    def _step(self, thread: Thread) -> bool:
        """Run up to a few commands of a thread; False where it cannot move."""
        moved = False
        for _ in range(self.random.randint(1, 3)):
            if thread.next == len(thread.commands):
                return moved
            command, fed, ident = thread.commands[thread.next]
            if any(not lane.done for lane in thread.lanes) or not self._may(thread, command, fed):
                return moved
            if isinstance(command, Launch) and not thread.lanes:
                thread.lanes = self.children[thread.place.rank, thread.place.queue, ident]
                if thread.lanes:
                    return True
            thread.lanes = []
            self._execute(command)
            self.order.append(thread.place._replace(id=ident))
            thread.next += 1
            moved = True
        return moved

    def _may(self, thread: Thread, command: Command, fed: int) -> bool:
        key = (thread.place.rank, thread.place.queue)
        if key in self.fed_queues and fed >= 0:
            before = 0
            for count, hold in self.holds.get(key, []):
                if fed < before + count:
                    if hold is not None and self._count(hold) < 1:
                        return False
                    break
                before += count
            else:
                return False
        if isinstance(command, Wait):
            return self._count((command.flag.rank, command.flag.index)) >= command.count
        return True

    def _count(self, flag: tuple[int, int]) -> int:
        return self.flags[flag] - self.base[flag]

    def at(self, s: Slice) -> np.ndarray:
        whole = self.memory[s.rank, s.buffer]
        assert 0 <= s.offset <= s.offset + s.nbytes <= len(whole), (s, len(whole))
        return whole[s.offset : s.offset + s.nbytes]

    def _execute(self, command: Command) -> None:
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
            case Encode(src, dst):
                data = self.at(src).copy()
                self.at(dst)[:8] = np.frombuffer(np.uint64(len(data)).tobytes(), np.uint8)
                self.at(dst)[8 : 8 + len(data)] = data
            case Decode(src, dst):
                length = int(self.at(src)[:8].copy().view(np.uint64)[0])
                self.at(dst)[:length] = self.at(src)[8 : 8 + length]
            case Kernel():
                self.ops[command.op](
                    [self.at(s) for s in command.reads], [self.at(s) for s in command.writes]
                )
            case Signal(flag):
                self.flags[flag.rank, flag.index] += 1
            case Submit(rank, queue, count, hold):
                held = None if hold is None else (hold.rank, hold.index)
                self.holds.setdefault((rank, queue), []).append((count, held))
            case Wait() | Launch() | Scope():
                pass
