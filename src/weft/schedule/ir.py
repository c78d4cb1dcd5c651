"""The intermediate representation of a Schedule: commands, queues, programs, buffers.

A Schedule states how a collective or a step is executed: for each rank and each queue, a list of
commands in order, synchronized by flags. The semantics are defined here, once. The interpreters
(the simulator, the runtime, the array interpreter of the tests) only decide how time passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Literal

from weft.schedule.values import SELF, Group, RankValue, Value

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.schedule.schedule import Schedule

Role = Literal["in", "out", "inout", "scratch"]


@dataclass(frozen=True, slots=True)
class Slice:
    """``nbytes`` of a rank's buffer, starting at ``offset``."""

    rank: RankValue
    buffer: str
    offset: Value
    nbytes: Value


@dataclass(frozen=True, slots=True)
class Flag:
    """A counter owned by ``rank``: signals increment it, waits block on it, nothing resets it."""

    rank: RankValue
    index: Value


@dataclass(frozen=True, slots=True)
class Cost:
    """The work of a kernel, for pricing: family, shape, flops, memory traffic, number of tiles.

    If ``seconds`` is set, the kernel is opaque and takes that long by itself. Tiles that exceed the
    compute units wait, and kernels of other streams wait behind them.
    ``implementation`` names the library of the kernel where a family has several, such as
    ``flash2``, ``flash3`` or ``cudnn`` for attention. ``scale`` multiplies the price of the family:
    how much longer a software stack takes for the same work.
    """

    family: str = ""
    shape: tuple[int | float, ...] = ()
    dtype: str = ""
    flops: float = 0.0
    nbytes: int = 0
    tiles: int = 1
    seconds: float = 0.0
    implementation: str = ""
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Kernel:
    """Computation: the simulator prices ``cost``, the runtime looks up and calls ``op``.

    An external kernel is executed elsewhere (by torch); the runtime only records its span.
    """

    op: str
    cost: Cost = Cost()
    reads: tuple[Slice, ...] = ()
    writes: tuple[Slice, ...] = ()
    external: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One GPU kernel that contains commands: its lanes run in parallel on its compute units.

    A lane is a tuple of commands in order; a Repeat in place of a lane stands for that many lanes.
    ``units=None`` takes as many as the collective kernels of the platform use. ``family`` names the
    collective, from which the simulator knows how fast one of its units moves data.
    """

    lanes: tuple[tuple[Command | Repeat, ...] | Repeat, ...]
    units: int | None = None
    workgroups: int | None = None
    family: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy ``src`` to ``dst``."""

    src: Slice
    dst: Slice


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Read ``src`` once and write it to every slice of ``dsts``."""

    src: Slice
    dsts: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Swap:
    """Exchange two slices in place."""

    a: Slice
    b: Slice


@dataclass(frozen=True, slots=True)
class Reduce:
    """Compute ``dst = srcs[0] op srcs[1] op ..``, in that order; dst may be one of the sources."""

    srcs: tuple[Slice, ...]
    dst: Slice
    dtype: str = "uint8"
    op: str = "sum"


@dataclass(frozen=True, slots=True)
class Encode:
    """Compress ``src`` into the slot ``dst``: actual length first, then room for the worst case."""

    src: Slice
    dst: Slice
    codec: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Decode:
    """Decompress the slot ``src`` into ``dst``."""

    src: Slice
    dst: Slice
    codec: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Signal:
    """Increment ``flag`` and publish everything this queue wrote before."""

    flag: Flag


@dataclass(frozen=True, slots=True)
class Wait:
    """Block until ``flag`` has received ``count`` signals in this execution."""

    flag: Flag
    count: Value = 1


@dataclass(frozen=True, slots=True)
class Submit:
    """A host command: hand over the next ``count`` commands of a queue.

    With ``hold`` they are prelaunched: handed over before time zero, and released by one Signal of
    that flag.
    """

    rank: RankValue
    queue: str
    count: Value
    hold: Flag | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Another schedule as one command: its ranks, buffers and queues are bound to the caller's.

    Inner rank j is the j-th of ``ranks``. ``buffers`` maps an inner buffer to a buffer of the
    caller and the offset at which it starts, which is equal on all ranks of the call; unmapped
    scratch becomes private scratch. ``queues`` renames queues. The inner queue that maps to the
    queue of the Call runs in its place; the others start with it and are joined at its end. Calls
    of one ``name`` are one call, seen from its ranks.
    """

    name: str
    schedule: Schedule
    ranks: Group
    buffers: tuple[tuple[str, str, Value], ...] = ()
    queues: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Repeat:
    """Run ``body`` ``count`` times; the loop counter advances the relative values inside."""

    count: int
    body: tuple[Command | Repeat, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """An inlined Call on one queue: its commands in place.

    ``enter`` and ``leave`` fork and join the queues of the call. They are not commands of the
    schedule: no Submit counts them or hands them over.
    """

    name: str
    body: tuple[Command | Repeat, ...]
    enter: tuple[Signal | Wait, ...] = ()
    leave: tuple[Signal | Wait, ...] = ()


Command = (
    Kernel
    | Launch
    | Copy
    | Broadcast
    | Swap
    | Reduce
    | Encode
    | Decode
    | Signal
    | Wait
    | Submit
    | Call
    | Scope
)


class CommandKind(IntEnum):
    """The command kinds as numbers, for tables and for the native core."""

    KERNEL = 0
    LAUNCH = 1
    COPY = 2
    BROADCAST = 3
    SWAP = 4
    REDUCE = 5
    ENCODE = 6
    DECODE = 7
    SIGNAL = 8
    WAIT = 9
    SUBMIT = 10
    CALL = 11


KIND_OF: dict[type, CommandKind] = {
    Kernel: CommandKind.KERNEL,
    Launch: CommandKind.LAUNCH,
    Copy: CommandKind.COPY,
    Broadcast: CommandKind.BROADCAST,
    Swap: CommandKind.SWAP,
    Reduce: CommandKind.REDUCE,
    Encode: CommandKind.ENCODE,
    Decode: CommandKind.DECODE,
    Signal: CommandKind.SIGNAL,
    Wait: CommandKind.WAIT,
    Submit: CommandKind.SUBMIT,
    Scope: CommandKind.CALL,
}


@dataclass(frozen=True, slots=True)
class Queue:
    """Commands that run one after another: ``stream0``, ``copy3``, ``nic0`` or ``host``.

    ``host`` is the rank whose host queue submits to it. A stream has a ``priority`` (higher runs
    first) and may be confined to a half-open range of compute ``units``.
    """

    name: str
    commands: tuple[Command | Repeat, ...]
    host: RankValue = SELF
    priority: int = 0
    units: tuple[int, int] | None = None

    @property
    def kind(self) -> str:
        """What executes it: stream, copy (engine), nic or host."""
        return queue_kind(self.name)


def queue_kind(name: str) -> str:
    """Return what kind of queue has this name.

    >>> queue_kind("copy3")
    'copy'
    """
    return name.rstrip("0123456789")


@dataclass(frozen=True, slots=True)
class Program:
    """The queues that every one of ``ranks`` executes."""

    ranks: range | tuple[int, ...]
    queues: tuple[Queue, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A symmetric buffer: every rank has ``nbytes`` of it (or its entry of the tuple).

    Between executions, ``in``, ``out`` and ``inout`` buffers belong to the caller.
    """

    name: str
    nbytes: int | tuple[int, ...]
    role: Role = "scratch"

    def size_on(self, rank: int) -> int:
        """Return the size of the buffer on ``rank`` in bytes."""
        return self.nbytes if isinstance(self.nbytes, int) else self.nbytes[rank]


def count_stored(commands: tuple[Command | Repeat, ...]) -> int:
    """Return the number of stored commands, including nested ones."""
    return sum(1 + sum(count_stored(body) for body in bodies(c)) for c in commands)


def bodies(command: Command | Repeat) -> Iterator[tuple[Command | Repeat, ...]]:
    """Yield the command sequences directly inside a command."""
    match command:
        case Repeat() | Scope():
            yield command.body
        case Launch():
            for lane in command.lanes:
                yield (lane,) if isinstance(lane, Repeat) else lane
        case Call():
            for program in command.schedule.programs:
                for queue in program.queues:
                    yield queue.commands
        case _:
            return
