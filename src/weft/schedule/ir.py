"""The nouns of a Schedule: commands, queues, programs, buffers.

A Schedule is the decision how something is carried out: for each rank, for each queue,
commands in order, joined by flags. Their meaning is written here, once; an interpreter
(simulator, runtime, the array interpreter of the tests) only decides how time passes.
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
    """``nbytes`` of a rank's buffer, from ``offset`` on."""

    rank: RankValue
    buffer: str
    offset: Value
    nbytes: Value


@dataclass(frozen=True, slots=True)
class Flag:
    """A counter owned by ``rank``: signals raise it, waits hold for it, nothing resets it."""

    rank: RankValue
    index: Value


@dataclass(frozen=True, slots=True)
class Cost:
    """What a kernel does, for pricing: family, shape, work and traffic, tiles it is cut into.

    With ``seconds`` it is an opaque kernel that takes so long by itself, whatever else is known;
    of its ``tiles`` those beyond the units wait, and kernels of other streams wait behind them.
    ``implementation`` names the library whose kernel it is, where a family has several: attention
    by ``flash2``, ``flash3``, ``cudnn``.
    """

    family: str = ""
    shape: tuple[int | float, ...] = ()
    dtype: str = ""
    flops: float = 0.0
    nbytes: int = 0
    tiles: int = 1
    seconds: float = 0.0
    implementation: str = ""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Computation: ``cost`` is what simulate prices, ``op`` what run looks up and calls.

    An external kernel is executed by somebody else (torch); run only stamps its span.
    """

    op: str
    cost: Cost = Cost()
    reads: tuple[Slice, ...] = ()
    writes: tuple[Slice, ...] = ()
    external: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """One GPU kernel around commands: lanes run side by side on its units.

    A lane is a tuple of commands in order; a Repeat in the place of a lane stands for that
    many lanes. ``units`` None: as many as the platform's collective kernels take. ``family``
    says which collective's kernel it is, by which simulate knows what one of its units moves.
    """

    lanes: tuple[tuple[Command | Repeat, ...] | Repeat, ...]
    units: int | None = None
    workgroups: int | None = None
    family: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """Move ``src`` over ``dst``."""

    src: Slice
    dst: Slice


@dataclass(frozen=True, slots=True)
class Broadcast:
    """Read ``src`` once, write every one of ``dsts``."""

    src: Slice
    dsts: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Swap:
    """Exchange two slices in place."""

    a: Slice
    b: Slice


@dataclass(frozen=True, slots=True)
class Reduce:
    """``dst = srcs[0] op srcs[1] op ..``, in that order; dst may be one of the sources."""

    srcs: tuple[Slice, ...]
    dst: Slice
    dtype: str = "uint8"
    op: str = "sum"


@dataclass(frozen=True, slots=True)
class Encode:
    """Compress ``src`` into the slot ``dst``: its real length in front, worst-case room behind."""

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
    """Add one to ``flag`` and publish what this queue wrote before."""

    flag: Flag


@dataclass(frozen=True, slots=True)
class Wait:
    """Hold until ``flag`` has had ``count`` signals in this execution."""

    flag: Flag
    count: Value = 1


@dataclass(frozen=True, slots=True)
class Submit:
    """A host command: hand over the next ``count`` commands standing in a queue.

    With ``hold`` they are prelaunched: handed over before time zero, released by one Signal
    of that flag.
    """

    rank: RankValue
    queue: str
    count: Value
    hold: Flag | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """Another schedule as one command: its ranks, buffers and queues bound to ours.

    Inner rank j is the j-th of ``ranks``. ``buffers`` maps an inner buffer to ours and an
    offset, equal on all ranks of the call, at which it starts; scratch that is not mapped
    becomes private scratch. ``queues`` renames; the inner queue that lands on the queue of
    the Call runs in its place, the others start with it and are joined at its end. Calls of
    one ``name`` are one call, seen from its ranks.
    """

    name: str
    schedule: Schedule
    ranks: Group
    buffers: tuple[tuple[str, str, Value], ...] = ()
    queues: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Repeat:
    """``body``, ``count`` times; the counter of this loop advances the values inside."""

    count: int
    body: tuple[Command | Repeat, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """What a Call becomes on one queue once it is bound: its commands in place.

    ``enter`` and ``leave`` fork and join the queues of one call. They are not commands of
    the schedule: no Submit counts or hands them over.
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


class Kind(IntEnum):
    """The kinds of commands as numbers, for tables and for the native core."""

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


KIND_OF: dict[type, Kind] = {
    Kernel: Kind.KERNEL,
    Launch: Kind.LAUNCH,
    Copy: Kind.COPY,
    Broadcast: Kind.BROADCAST,
    Swap: Kind.SWAP,
    Reduce: Kind.REDUCE,
    Encode: Kind.ENCODE,
    Decode: Kind.DECODE,
    Signal: Kind.SIGNAL,
    Wait: Kind.WAIT,
    Submit: Kind.SUBMIT,
    Scope: Kind.CALL,
}


@dataclass(frozen=True, slots=True)
class Queue:
    """Commands that run one after another: ``stream0``, ``copy3``, ``nic0`` or ``host``.

    ``host`` is the rank whose host queue feeds it. A stream has a ``priority`` (higher goes
    first) and may be confined to the ``units`` from the first number up to the second.
    """

    name: str
    commands: tuple[Command | Repeat, ...]
    host: RankValue = SELF
    priority: int = 0
    units: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """What every one of ``ranks`` does."""

    ranks: range | tuple[int, ...]
    queues: tuple[Queue, ...]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A symmetric name: every rank has ``nbytes`` of it (or its entry of the tuple).

    Outside an execution ``in``, ``out`` and ``inout`` buffers belong to the caller.
    """

    name: str
    nbytes: int | tuple[int, ...]
    role: Role = "scratch"

    def size_on(self, rank: int) -> int:
        """The bytes that ``rank`` has of it."""
        return self.nbytes if isinstance(self.nbytes, int) else self.nbytes[rank]


def stored(commands: tuple[Command | Repeat, ...]) -> int:
    """How many commands are written down here and below."""
    return sum(1 + sum(stored(body) for body in bodies(c)) for c in commands)


def bodies(command: Command | Repeat) -> Iterator[tuple[Command | Repeat, ...]]:
    """The command sequences that stand directly inside a command."""
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
