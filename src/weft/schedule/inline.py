"""Inlining: returns an equivalent Schedule in which every Call is replaced by its commands."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import ScheduleError
from weft.schedule.ir import (
    Broadcast,
    Buffer,
    Call,
    Command,
    Copy,
    Decode,
    Encode,
    Flag,
    Kernel,
    Launch,
    Program,
    Queue,
    Reduce,
    Repeat,
    Scope,
    Signal,
    Slice,
    Submit,
    Swap,
    Wait,
    bodies,
)
from weft.schedule.values import SELF, Group, bind_rank, bind_value, plus

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.schedule.schedule import Schedule
    from weft.schedule.values import Value

    Items = tuple[Command | Repeat, ...]


def inline(schedule: Schedule) -> Schedule:
    """Return ``schedule`` with every Call replaced by the commands it stands for.

    The ranks of a program may have different positions in the schedules they call, so a program is
    split into one program per combination of positions.
    """
    calls = _calls(schedule)
    if not calls:
        return schedule
    bindings: dict[str, _Binding] = {}
    base = schedule.num_flags
    for name, call in calls.items():
        inner = inline(call.schedule)
        _check_ranks(call, inner, schedule.num_ranks)
        queues = {queue.name for program in inner.programs for queue in program.queues}
        bindings[name] = _Binding(call, inner, base, len(queues))
        base += bindings[name].num_flags
    programs = tuple(
        _inline_program(program, part, bindings)
        for program in schedule.programs
        for part in _parts(program, bindings)
    )
    last = list(bindings.values())[-1]
    private = tuple(b for binding in bindings.values() for b in binding.private)
    ratios = {codec: r for binding in bindings.values() for codec, r in binding.inner.ratios}
    return replace(
        schedule,
        programs=programs,
        buffers=schedule.buffers + private,
        num_flags=last.flag_base + last.num_flags,
        ratios=tuple({**ratios, **dict(schedule.ratios)}.items()),
    )


@dataclass(frozen=True, slots=True)
class _Binding:
    """One call: the inner schedule without calls, and what its names map to in the caller."""

    call: Call
    inner: Schedule
    flag_base: int
    num_queues: int

    @property
    def num_flags(self) -> int:
        """The number of flags: the inner ones, one per queue to start it, one to join."""
        return self.inner.num_flags + self.num_queues + 1

    @property
    def private(self) -> tuple[Buffer, ...]:
        mapped = {name for name, _, _ in self.call.buffers}
        return tuple(
            Buffer(f"{self.call.name}.{b.name}", _widest(b), "scratch")
            for b in self.inner.buffers
            if b.name not in mapped
        )

    def queue(self, name: str) -> str:
        return dict(self.call.queues).get(name, name)

    def slice(self, s: Slice) -> Slice:
        names = {inner: (outer, offset) for inner, outer, offset in self.call.buffers}
        outer, offset = names.get(s.buffer, (f"{self.call.name}.{s.buffer}", 0))
        group = self.call.ranks
        return Slice(
            bind_rank(s.rank, group),
            outer,
            plus(bind_value(s.offset, group), offset),
            bind_value(s.nbytes, group),
        )

    def slices(self, many: tuple[Slice, ...]) -> tuple[Slice, ...]:
        return tuple(self.slice(s) for s in many)

    def flag(self, f: Flag) -> Flag:
        index = plus(bind_value(f.index, self.call.ranks), self.flag_base)
        return Flag(bind_rank(f.rank, self.call.ranks), index)

    def value(self, value: Value) -> Value:
        return bind_value(value, self.call.ranks)

    def items(self, items: Items) -> Items:
        return tuple(self.item(item) for item in items)

    def item(self, item: Command | Repeat) -> Command | Repeat:  # noqa: C901, PLR0911 - one case a command
        match item:
            case Repeat():
                return replace(item, body=self.items(item.body))
            case Scope():
                enter: Any = self.items(item.enter)
                leave: Any = self.items(item.leave)
                return replace(item, body=self.items(item.body), enter=enter, leave=leave)
            case Launch():
                lanes: Any = tuple(
                    self.item(lane) if isinstance(lane, Repeat) else self.items(lane)
                    for lane in item.lanes
                )
                return replace(item, lanes=lanes)
            case Kernel():
                return replace(item, reads=self.slices(item.reads), writes=self.slices(item.writes))
            case Copy() | Encode() | Decode():
                return replace(item, src=self.slice(item.src), dst=self.slice(item.dst))
            case Broadcast():
                return Broadcast(self.slice(item.src), self.slices(item.dsts))
            case Swap():
                return Swap(self.slice(item.a), self.slice(item.b))
            case Reduce():
                return replace(item, srcs=self.slices(item.srcs), dst=self.slice(item.dst))
            case Signal():
                return Signal(self.flag(item.flag))
            case Wait():
                return Wait(self.flag(item.flag), self.value(item.count))
            case Submit():
                hold = None if item.hold is None else self.flag(item.hold)
                rank = bind_rank(item.rank, self.call.ranks)
                return Submit(rank, self.queue(item.queue), self.value(item.count), hold)
            case Call():
                raise AssertionError("inner schedules are inlined first")


def _widest(buffer: Buffer) -> int:
    return buffer.nbytes if isinstance(buffer.nbytes, int) else max(buffer.nbytes, default=0)


def _calls(schedule: Schedule) -> dict[str, Call]:
    """Return the calls by name; calls of one name must be equal, and appear once per rank."""
    calls: dict[str, Call] = {}
    for program in schedule.programs:
        here = list(_calls_of(program))
        names = Counter(call.name for call in here)
        for call in here:
            if names[call.name] > 1 or calls.setdefault(call.name, call) != call:
                raise ScheduleError(
                    f"schedule {schedule.name}: two different calls are named {call.name!r}.",
                    "Calls of one name are one call, seen from its ranks: rename one of them.",
                )
    return calls


def _calls_of(program: Program) -> Iterator[Call]:
    for queue in program.queues:
        yield from (c for c in queue.commands if isinstance(c, Call))
        if any(isinstance(c, Call) for top in queue.commands for c in _below(top)):
            raise ScheduleError(
                f"queue {queue.name}: a Call is inside a loop or a Launch.",
                "Put the Call directly on a queue; unroll the loop around it.",
            )


def _below(command: Command | Repeat) -> Iterator[Command | Repeat]:
    if isinstance(command, Call):
        return
    for body in bodies(command):
        for inner in body:
            yield inner
            yield from _below(inner)


def _check_ranks(call: Call, inner: Schedule, num_ranks: int) -> None:
    """Check that the called schedule fits the group it is bound to (see Group.within)."""
    outer = call.ranks
    if inner.num_ranks != outer.size:
        raise ScheduleError(
            f"call {call.name}: {inner.name} has {inner.num_ranks} ranks, expected {outer.size} "
            "(the size "
            "of its group)."
        )
    once = outer.size * outer.stride >= (len(outer.ranks) or num_ranks)
    for group in set(_groups(inner.programs)):
        if group.ranks or not (once or outer.size % (group.size * group.stride) == 0):
            raise ScheduleError(
                f"call {call.name}: {inner.name} uses groups ({group}) that do not nest in groups "
                "of "
                f"{outer.size}.",
                "Call it once per group, with its ranks listed.",
            )


def _groups(value: Any) -> Iterator[Group]:
    """Yield every group that a value contains."""
    if isinstance(value, Group):
        yield value
    elif isinstance(value, tuple):
        if not all(isinstance(each, int) for each in value):  # tables may be long
            for each in value:
                yield from _groups(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _groups(getattr(value, each.name))


def _parts(program: Program, bindings: dict[str, _Binding]) -> Iterator[range | tuple[int, ...]]:
    """Yield the ranks of ``program``, split by their positions in the calls."""
    ranks = np.asarray(program.ranks, np.int64)
    marks: list[Any] = [np.zeros(len(ranks), np.int64)]
    for call in _calls_of(program):
        binding = bindings[call.name]
        position = call.ranks.position(ranks)
        marks += [np.isin(position, np.asarray(p.ranks)) for p in binding.inner.programs]
    _, part = np.unique(np.stack(marks), axis=1, return_inverse=True)
    part = part.reshape(-1)
    for number in range(int(part.max()) + 1 if len(part) else 0):
        yield as_ranks(ranks[part == number])


def as_ranks(ranks: np.ndarray[Any, np.dtype[np.int64]]) -> range | tuple[int, ...]:
    """Return a range if the ranks are evenly spaced, otherwise a tuple."""
    steps = np.diff(ranks)
    if len(ranks) and (steps == steps[:1]).all() and (steps > 0).all():
        step = int(steps[0]) if len(steps) else 1
        return range(int(ranks[0]), int(ranks[-1]) + 1, step)
    return tuple(ranks.tolist())


def _inline_program(
    program: Program, part: range | tuple[int, ...], bindings: dict[str, _Binding]
) -> Program:
    queues: dict[str, Queue] = {q.name: replace(q, commands=()) for q in program.queues}

    def append(like: Queue, *items: Command | Repeat) -> None:
        have = queues.get(like.name, replace(like, commands=()))
        queues[like.name] = replace(have, commands=have.commands + items)

    for queue in program.queues:
        for command in queue.commands:
            if isinstance(command, Call):
                for like, scope in _scopes(queue, bindings[command.name], part[0]):
                    append(like, scope)
            else:
                append(queue, command)
    return Program(part, tuple(queues.values()))


def _scopes(caller: Queue, binding: _Binding, rank: int) -> Iterator[tuple[Queue, Scope]]:
    """Yield the commands of each queue of ``rank`` for one call, the calling queue first."""
    group: Group = binding.call.ranks
    inner_rank = int(group.position(rank))
    inner = [q for p in binding.inner.programs if inner_rank in p.ranks for q in p.queues]
    mine = tuple(c for q in inner if binding.queue(q.name) == caller.name for c in q.commands)
    forks = [q for q in inner if binding.queue(q.name) != caller.name]
    first = binding.flag_base + binding.inner.num_flags
    done = Flag(SELF, first + binding.num_queues)
    starts = [Flag(SELF, first + number) for number in range(len(forks))]
    yield (
        caller,
        Scope(
            binding.call.name,
            binding.items(mine),
            enter=tuple(Signal(flag) for flag in starts),
            leave=(Wait(done, len(forks)),) if forks else (),
        ),
    )
    for queue, start in zip(forks, starts, strict=True):
        like = replace(queue, name=binding.queue(queue.name), host=bind_rank(queue.host, group))
        body = binding.items(queue.commands)
        yield like, Scope(binding.call.name, body, enter=(Wait(start),), leave=(Signal(done),))
