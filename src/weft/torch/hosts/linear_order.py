"""The commands of a rank in one order, from queues that run at the same time.

The queues of a rank are joined by flags that only itself and messages raise. So an order of all
its commands is known in advance: ``linear_program`` computes it once, and executing is a loop over
it.

A step that waits for another rank keeps all queues of its rank waiting. Schedules in which another
queue could go on meanwhile are refused, so whatever has no deadlock with queues that run at the
same time has none in one order either.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from weft.errors import ScheduleError
from weft.runtime.prepared_cache import CallKey
from weft.schedule import (
    Call,
    Command,
    CommandKind,
    CommandTable,
    Copy,
    Kernel,
    Launch,
    Reduce,
    Repeat,
    Schedule,
    Scope,
    Signal,
    Slice,
    Wait,
    expand,
    queue_kind,
)
from weft.schedule.schedule import commands_of
from weft.schedule.values import as_int
from weft.torch.hosts.nic_steps import (
    Compute,
    Divide,
    Inside,
    LinearProgram,
    Place,
    Post,
    Received,
    Send,
    Sent,
    Step,
    StepSpan,
)

_FIRST_TAG = 16  # of the messages of a schedule: one tag for each flag
_LINE = 64  # bytes: buffers do not share cache lines


class _Message(NamedTuple):
    """A message to this rank: its flag, where it goes, and the number of grants that it needs."""

    flag: int
    place: Place
    grants: int


class _Queue:
    """The commands of a queue in order, and the step at which the next one began."""

    def __init__(self, name: str) -> None:
        self.name, self.kind = name, queue_kind(name)
        self.commands: deque[Command] = deque()
        self.begin = 0
        self.copy: Copy | None = None  # to another host: sent with the signal that follows


def linear_program(
    schedule: Schedule, rank: int, host_of: tuple[int, ...], key_of: Callable[[Schedule], CallKey]
) -> LinearProgram:
    """Put the commands of a rank into one order: nic queues go first whenever they can.

    ``key_of`` returns the call of the World that executes a schedule inside this host.
    """
    order = _Linearizer(schedule, rank, host_of, key_of)
    while order.advance():
        pass
    scratch, stop = [], 0
    for buffer in schedule.buffers:
        if buffer.role == "scratch":
            start, stop = stop, stop + -(-buffer.size_on(rank) // _LINE) * _LINE
            scratch.append((buffer.name, start, stop))
    return LinearProgram(schedule, order.steps, order.spans, tuple(scratch))


class _Linearizer:
    """The state of one rank while its commands are put into an order."""

    def __init__(
        self,
        schedule: Schedule,
        rank: int,
        host_of: tuple[int, ...],
        key_of: Callable[[Schedule], CallKey],
    ) -> None:
        self.steps: list[Step] = []
        self.spans: list[StepSpan] = []
        self._rank, self._key_of = rank, key_of
        self._calls = _calls_of(schedule)
        flat = _without_calls(schedule)
        queues: dict[str, _Queue] = {}
        for location, command in commands_of(expand(flat, [rank])):
            queues.setdefault(location.queue, _Queue(location.queue)).commands.append(command)
        # Nic queues first: their commands only start something.
        self._queues = sorted(queues.values(), key=lambda queue: queue.name)
        calling = [q.name for q in self._queues if any(isinstance(c, Scope) for c in q.commands)]
        if len(calling) > 1:
            raise ScheduleError(
                f"rank {rank}: {' and '.join(calling)} both have calls inside the host.",
                "Put all calls on one queue: every rank of the host makes them in one order.",
            )
        self._waiting_ranks = _ranks_that_wait(flat)
        self._raised: Counter[int] = Counter()  # own flags
        self._own = {
            command.flag.index
            for queue in self._queues
            for command in queue.commands
            if isinstance(command, Signal) and command.flag.rank == rank
        }
        self._granted: Counter[int] = Counter()  # by peer
        self._messages = _messages_to(rank, flat, host_of)
        self._arriving = {each.flag for found in self._messages.values() for each in found}
        self._posted: dict[int, deque[int]] = defaultdict(deque)  # numbers by flag
        self._num_posted = 0
        self._unposted: list[Step] = []
        for peer in self._messages:
            self._post(peer)

    def advance(self) -> bool:
        """Take the next command, or a message that all queues wait for; return False at the end."""
        active = [queue for queue in self._queues if queue.commands]
        ready = [queue for queue in active if self._is_ready(queue.commands[0])]
        messages = {
            queue.name: flag
            for queue in active
            if queue not in ready and self._posted[flag := _flag_of(queue.commands[0])]
        }
        # Commands without waits go first: sends are on the wire as early as possible.
        for queue in ready:
            if not self._waits_for_others(queue):
                self._take(queue, queue.commands.popleft())
                return True
        # Two waits of which either could come first: picking one may wait for a rank that waits
        # for what stands behind the other.
        if len(ready) + len(set(messages.values())) > 1:
            waits = [f"{queue.name} for {_name_of(queue.commands[0])}" for queue in ready]
            waits += [f"{name} for the message of flag {flag}" for name, flag in messages.items()]
            raise ScheduleError(
                f"rank {self._rank}: {' and '.join(waits)} would wait at the same time; a rank "
                "executes its queues in one order, so either could keep the other from going on.",
                "Let one queue wait for other ranks, and signal the others by flags of this rank.",
            )
        if ready:
            self._take(ready[0], ready[0].commands.popleft())
            return True
        if messages:
            flag = next(iter(messages.values()))
            self._emit(Received(self._posted[flag].popleft()))
            self._raised[flag] += 1
            return True
        if active:
            names = " and ".join(queue.name for queue in active)
            raise ScheduleError(f"{names} waits for a signal that nothing brings.")
        return False

    def _waits_for_others(self, queue: _Queue) -> bool:
        """Return whether its next command waits for ranks that may wait for this one.

        Ranks without waits of their own are on their way to a call whatever this rank does.
        """
        command = queue.commands[0]
        if isinstance(command, Scope):
            group = self._calls[command.name].ranks
            ranks = {int(group.member(self._rank, each)) for each in range(group.size)}
            return not self._waiting_ranks.isdisjoint(ranks - {self._rank})
        return self._ends_sends(queue, command)

    def _ends_sends(self, queue: _Queue, command: Command) -> bool:
        own = isinstance(command, Signal) and command.flag.rank == self._rank
        return own and queue.kind == "nic"

    def _is_ready(self, command: Command) -> bool:
        if not isinstance(command, Wait):
            return True
        flag = as_int(command.flag.index)
        if flag in self._own or flag in self._arriving:
            return self._raised[flag] >= as_int(command.count)
        return True  # a grant: Gloo sends to a posted receive only

    def _take(self, queue: _Queue, command: Command) -> None:
        match command:
            case Signal():
                self._signal(queue, command)
            case Copy() if command.dst.rank != self._rank:
                queue.copy = command
            case Copy():
                self._compute("uint8", "sum", (command.src,), command.dst)
            case Reduce():
                self._compute(command.dtype, command.op, command.srcs, command.dst)
            case Kernel(op="divide"):
                self._emit(Divide(_place(command.writes[0])))
            case Scope():
                self._call(self._calls[command.name])
            case Wait() | Launch():
                pass
            case _:
                raise ScheduleError(
                    f"{type(command).__name__} on {queue.name} cannot run between hosts."
                )
        self.spans.append(StepSpan(queue.name, queue.begin, len(self.steps)))
        queue.begin = len(self.steps)

    def _signal(self, queue: _Queue, command: Signal) -> None:
        peer, flag = as_int(command.flag.rank), as_int(command.flag.index)
        if peer == self._rank:
            # The queue says that its sources may be overwritten: all its sends must have left.
            if self._ends_sends(queue, command):
                self._emit(Sent())
            self._raised[flag] += 1
        elif queue.copy is not None:
            place = _place(queue.copy.src)
            self._emit(Send(peer, _FIRST_TAG + flag, place))
            queue.copy = None
        else:
            self._granted[peer] += 1
            self._post(peer)

    def _emit(self, step: Step) -> None:
        """Add a step; receives are posted before something waits for them, and after a send.

        The first receive of a call waits until the previous host has made the same call.
        """
        sent = bool(self.steps) and isinstance(self.steps[-1], Send)
        if isinstance(step, Received | Sent) or (sent and not isinstance(step, Send)):
            self.steps += self._unposted
            self._unposted.clear()
        self.steps.append(step)

    def _post(self, peer: int) -> None:
        messages = self._messages.get(peer)
        # A receive is posted when this rank has granted the memory it writes to; Gloo holds the
        # sender back until then, so no grant travels on the wire.
        while messages and messages[0].grants <= self._granted[peer]:
            message = messages.popleft()
            step = Post(self._num_posted, peer, _FIRST_TAG + message.flag, message.place)
            self._unposted.append(step)
            self._posted[message.flag].append(self._num_posted)
            self._num_posted += 1

    def _compute(self, dtype: str, op: str, sources: tuple[Slice, ...], to: Slice) -> None:
        self._emit(Compute(dtype, op, tuple(map(_place, sources)), _place(to)))

    def _call(self, call: Call) -> None:
        mapped = {inner: (outer, offset) for inner, outer, offset in call.buffers}
        local = call.ranks.position(self._rank)
        binds = []
        for number, buffer in enumerate(call.schedule.buffers):
            if buffer.name in mapped:
                outer, offset = mapped[buffer.name]
                binds.append((number, (outer, as_int(offset), buffer.size_on(local))))
        self._emit(Inside(self._key_of(call.schedule), tuple(binds)))


def _place(part: Slice) -> Place:
    return (part.buffer, as_int(part.offset), as_int(part.nbytes))


def _flag_of(command: Command) -> int:
    assert isinstance(command, Wait)  # every other command is ready
    return as_int(command.flag.index)


def _name_of(command: Command) -> str:
    return command.name if isinstance(command, Scope) else "its sends"


def _ranks_that_wait(schedule: Schedule) -> set[int]:
    """Return the ranks that wait for messages, or for room to send them."""
    return {
        rank
        for program in schedule.programs
        if any(_has_wait(queue.commands) for queue in program.queues)
        for rank in program.ranks
    }


def _has_wait(commands: tuple[Command | Repeat, ...]) -> bool:
    return any(
        isinstance(each, Wait) or (isinstance(each, Repeat) and _has_wait(each.body))
        for each in commands
    )


def _calls_of(schedule: Schedule) -> dict[str, Call]:
    return {
        command.name: command
        for program in schedule.programs
        for queue in program.queues
        for command in queue.commands
        if isinstance(command, Call)
    }


def _without_calls(schedule: Schedule) -> Schedule:
    """Return the schedule with an empty scope for every call."""
    return replace(
        schedule,
        programs=tuple(
            replace(
                program,
                queues=tuple(
                    replace(
                        queue,
                        commands=tuple(
                            Scope(each.name, ()) if isinstance(each, Call) else each
                            for each in queue.commands
                        ),
                    )
                    for queue in program.queues
                ),
            )
            for program in schedule.programs
        ),
    )


def _messages_to(
    rank: int, schedule: Schedule, host_of: tuple[int, ...]
) -> dict[int, deque[_Message]]:
    """Return the messages to a rank from ranks of other hosts, in the order of each sender.

    A message needs as many grants as its sender's last wait before it for a flag of this rank's.
    """
    if rank not in _ranks_that_wait(schedule):
        return {}
    programs = [
        program
        if rank in program.ranks
        else replace(program, queues=tuple(q for q in program.queues if q.kind == "nic"))
        for program in schedule.programs
    ]
    senders = [
        peer
        for program in programs
        for peer in program.ranks
        if program.queues and host_of[peer] != host_of[rank]
    ]
    table = expand(replace(schedule, programs=tuple(programs)), [rank, *senders])
    runner = table.thread_rank[table.thread]
    waits = table.kind == CommandKind.WAIT
    after_copy = np.append(False, table.kind[:-1] == CommandKind.COPY)
    signals = (table.kind == CommandKind.SIGNAL) & ~after_copy
    copies = np.flatnonzero((table.kind == CommandKind.COPY) & (runner != rank))
    copies = copies[table.access_rank[table.access_start[copies + 1] - 1] == rank]
    found: dict[int, deque[_Message]] = {}
    for sender in senders:
        here = signals & (runner == rank) & (table.flag_rank == sender)
        grants = np.unique(table.flag_index[here])
        asked = np.flatnonzero(waits & (runner == sender) & np.isin(table.flag_index, grants))
        rows = copies[runner[copies] == sender]
        before = np.searchsorted(asked, rows) - 1
        found[sender] = deque(
            _Message(
                int(table.flag_index[row + 1]),
                _place_of(table, row),
                int(table.count[asked[last]]) if last >= 0 else 0,
            )
            for row, last in zip(rows.tolist(), before.tolist(), strict=True)
        )
    return found


def _place_of(table: CommandTable, row: int) -> Place:
    at = table.access_start[row + 1] - 1
    buffer = table.buffers[table.access_buffer[at]]
    return (buffer, int(table.access_offset[at]), int(table.access_nbytes[at]))
