"""Schedules made by hand, a few for every kind of command, and the ops they call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from weft.schedule import (
    SELF,
    Broadcast,
    Buffer,
    Call,
    Copy,
    Decode,
    Encode,
    Flag,
    Group,
    Kernel,
    Launch,
    Program,
    Queue,
    Reduce,
    Rel,
    Repeat,
    Schedule,
    Signal,
    Slice,
    Submit,
    Swap,
    Wait,
    shifted,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 1000
READY, SENT, GO, EXTRA = range(4)


def own(buffer: str, offset: Any = 0, nbytes: int = SIZE) -> Slice:
    return Slice(SELF, buffer, offset, nbytes)


def double(inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    outputs[0][:] = inputs[0] * 2


def join(inputs: list[np.ndarray], outputs: list[np.ndarray]) -> None:
    outputs[0][:] = np.concatenate(inputs)


OPS = {"double": double, "join": join}
IN, OUT = Buffer("in", SIZE, "in"), Buffer("out", SIZE, "out")


def made(
    name: str, num_ranks: int, *queues: Queue, buffers: tuple[Buffer, ...] = (IN, OUT)
) -> Schedule:
    return Schedule(name, num_ranks, (Program(range(num_ranks), queues),), buffers, 4)


def following(num_ranks: int) -> Any:
    return shifted(Group(num_ranks), 1)


def previous(num_ranks: int) -> Any:
    return shifted(Group(num_ranks), num_ranks - 1)


def greet(num_ranks: int) -> tuple[Signal, Wait]:
    """Nobody writes to the next rank before that has started."""
    return Signal(Flag(previous(num_ranks), READY)), Wait(Flag(SELF, READY))


def copy_engine(num_ranks: int) -> Schedule:
    nxt = following(num_ranks)
    engine = Queue(
        "copy0",
        (*greet(num_ranks), Copy(own("in"), Slice(nxt, "out", 0, SIZE)), Signal(Flag(nxt, SENT))),
    )
    stream = Queue("stream0", (Wait(Flag(SELF, SENT)),))
    return made("copy on an engine", num_ranks, stream, engine)


def two_engines(num_ranks: int) -> Schedule:
    """Halves go by a copy and a nic queue, joined by two signals."""
    nxt, half = following(num_ranks), SIZE // 2

    def send(offset: int) -> tuple[Copy, Signal]:
        copy = Copy(own("in", offset, half), Slice(nxt, "out", offset, half))
        return copy, Signal(Flag(nxt, SENT))

    go = Wait(Flag(SELF, GO), 1)
    start = (*greet(num_ranks), Signal(Flag(SELF, GO)), Wait(Flag(SELF, SENT), 2))
    return made(
        "two engines",
        num_ranks,
        Queue("stream0", start),
        Queue("copy3", (go, *send(0))),
        Queue("nic0", (go, *send(half))),
    )


def broadcast(num_ranks: int) -> Schedule:
    """Rank 0 writes to all the others at once, pieces larger than the cache block."""
    size = 200_001
    everyone = tuple(Slice(rank, "out", 0, size) for rank in range(num_ranks))
    tell = tuple(Signal(Flag(rank, SENT)) for rank in range(num_ranks))
    ready = Wait(Flag(SELF, READY), num_ranks)
    greeting = Signal(Flag(0, READY))
    root = (
        Queue("copy0", (ready, Broadcast(own("in", 0, size), everyone), *tell)),
        Queue("stream0", (greeting, Wait(Flag(SELF, SENT)))),
    )
    other = (Queue("stream0", (greeting, Wait(Flag(SELF, SENT)))),)
    programs = (Program((0,), root), Program(range(1, num_ranks), other))
    buffers = (Buffer("in", size, "in"), Buffer("out", size, "out"))
    return Schedule("broadcast", num_ranks, programs, buffers, 4)


def swap(num_ranks: int) -> Schedule:
    """Rank 0 exchanges its data with the last rank's, in place."""
    size, last = 20_011, num_ranks - 1
    act = (
        Wait(Flag(SELF, READY)),
        Swap(own("data", 0, size), Slice(last, "data", 0, size)),
        Signal(Flag(last, SENT)),
        Signal(Flag(SELF, SENT)),
    )
    first = (Queue("copy0", act), Queue("stream0", (Wait(Flag(SELF, SENT)),)))
    second = (Queue("stream0", (Signal(Flag(0, READY)), Wait(Flag(SELF, SENT)))),)
    programs = (Program((0,), first), Program((last,), second))
    buffers = (Buffer("data", size, "inout"),)
    return Schedule("swap", num_ranks, programs, buffers, 4)


def reduce(num_ranks: int) -> Schedule:
    """Rank 0 adds up what lies in the memory of all, in order, into a source."""
    everyone = tuple(Slice(rank, "data", 0, SIZE) for rank in range(num_ranks))
    tell = tuple(Signal(Flag(rank, SENT)) for rank in range(num_ranks))
    add = Reduce(everyone, own("data"), "int16", "sum")
    root = (Queue("stream0", (Wait(Flag(SELF, READY), num_ranks - 1), add, *tell)),)
    other = (Queue("stream0", (Signal(Flag(0, READY)), Wait(Flag(SELF, SENT)))),)
    programs = (Program((0,), root), Program(range(1, num_ranks), other))
    return Schedule("reduce", num_ranks, programs, (Buffer("data", SIZE, "inout"),), 4)


def codec(num_ranks: int) -> Schedule:
    nxt, slot = following(num_ranks), SIZE + 8
    stream = (
        Encode(own("in"), own("packed", 0, slot), "none", "uint8"),
        *greet(num_ranks),
        Launch(
            (
                (
                    Copy(own("packed", 0, slot), Slice(nxt, "got", 0, slot)),
                    Signal(Flag(nxt, SENT)),
                ),
            )
        ),
        Wait(Flag(SELF, SENT)),
        Decode(own("got", 0, slot), own("out"), "none", "uint8"),
    )
    slots = (Buffer("packed", slot), Buffer("got", slot))
    return made("codec", num_ranks, Queue("stream0", stream), buffers=(IN, OUT, *slots))


def lanes(num_ranks: int) -> Schedule:
    """A lane computes piece k, another sends it on, a third waits for what comes."""
    pieces, size = 10, SIZE // 10
    nxt = following(num_ranks)
    at = Rel(0, (size,))
    here, there = own("scratch", at, size), Slice(nxt, "out", at, size)
    compute = Repeat(
        pieces, (Kernel("double", reads=(own("in", at, size),), writes=(here,)), _tell(SELF, GO))
    )
    send = Repeat(pieces, (Wait(Flag(SELF, GO), Rel(1, (1,))), Copy(here, there), _tell(nxt, SENT)))
    receive = (Wait(Flag(SELF, SENT), pieces),)
    launch = Launch(((compute,), (*greet(num_ranks), send), receive, ()))
    buffers = (IN, OUT, Buffer("scratch", SIZE))
    return made("lanes", num_ranks, Queue("stream0", (launch,)), buffers=buffers)


def _tell(rank: Any, index: int) -> Signal:
    return Signal(Flag(rank, index))


def launches(num_ranks: int) -> Schedule:
    """Launches in a loop, each with a lane per piece, side by side with another stream."""
    size = SIZE // 4
    at = Rel(0, (2 * size, size))
    lane = Repeat(2, (Copy(own("in", at, size), own("out", at, size)),))
    loop = Repeat(2, (Launch((lane,)), _tell(SELF, GO)))
    other = (Wait(Flag(SELF, GO), 2), Kernel("step", external=True))
    return made("launches", num_ranks, Queue("stream0", (loop,)), Queue("stream1", other))


def kernels(num_ranks: int) -> Schedule:
    """An op reads what lies on two ranks."""
    half = SIZE // 2
    reads = (own("in", 0, half), Slice(following(num_ranks), "in", half, half))
    stream = (
        *greet(num_ranks),
        Kernel("join", reads=reads, writes=(own("out"),)),
        _tell(following(num_ranks), SENT),
        Wait(Flag(SELF, SENT)),
    )
    return made("kernels", num_ranks, Queue("stream0", stream))


def submits(num_ranks: int) -> Schedule:
    """The host hands a stream its commands one by one, an engine all at once."""
    nxt = following(num_ranks)
    stream = (
        Kernel("double", reads=(own("in"),), writes=(own("scratch"),)),
        _tell(SELF, GO),
        Wait(Flag(SELF, SENT)),
    )
    engine = (
        *greet(num_ranks),
        Wait(Flag(SELF, GO)),
        Copy(own("scratch"), Slice(nxt, "out", 0, SIZE)),
        _tell(nxt, SENT),
    )
    one = Submit(SELF, "stream0", 1)
    host = (Repeat(2, (one,)), Submit(SELF, "copy0", len(engine)), one)
    return made(
        "submits",
        num_ranks,
        Queue("stream0", stream),
        Queue("copy0", engine),
        Queue("host", host),
        buffers=(IN, OUT, Buffer("scratch", SIZE)),
    )


def far_host(num_ranks: int) -> Schedule:
    """Rank 0's host feeds the engines of all ranks, half of each held until all are ready."""
    group, half = Group(num_ranks), SIZE // 2
    nxt = following(num_ranks)
    engine = Queue(
        "copy0",
        (
            Copy(own("in", 0, half), own("out", 0, half)),
            Copy(own("in", half, half), Slice(nxt, "out", half, half)),
            _tell(nxt, SENT),
        ),
        host=0,
    )
    stream = Queue("stream0", (_tell(0, READY), Wait(Flag(SELF, SENT))))
    feed = Repeat(
        num_ranks,
        (
            Submit(shifted(group, 0, 1), "copy0", 1),
            Submit(shifted(group, 0, 1), "copy0", 2, hold=Flag(0, GO)),
        ),
    )
    host = Queue("host", (feed, Wait(Flag(SELF, READY), num_ranks), _tell(SELF, GO)))
    programs = (
        Program((0,), (stream, engine, host)),
        Program(range(1, num_ranks), (stream, engine)),
    )
    return Schedule("far host", num_ranks, programs, (IN, OUT), 4)


def calls(num_ranks: int) -> Schedule:
    """What stands on a stream and an engine, called twice by a third schedule."""
    inner, group = copy_engine(num_ranks), Group(num_ranks)
    first = Call("there", inner, group, (("in", "in", 0), ("out", "middle", 0)))
    second = Call(
        "on", inner, group, (("in", "middle", 0), ("out", "out", 0)), (("copy0", "copy1"),)
    )
    middle = Buffer("middle", SIZE)
    return made("calls", num_ranks, Queue("stream0", (first, second)), buffers=(IN, OUT, middle))


def fed_calls(num_ranks: int) -> Schedule:
    """A host hands over what is inside a call; forks and joins count for nothing."""
    inner = copy_engine(num_ranks)
    call = Call("there", inner, Group(num_ranks), (("in", "in", 0), ("out", "out", 0)))
    host = Queue("host", (Submit(SELF, "stream0", 1), Submit(SELF, "copy0", 4)))
    return made("fed calls", num_ranks, Queue("stream0", (call,)), host)


def nothing(num_ranks: int) -> Schedule:
    """Empty slices, an empty launch, and ranks that have nothing to do."""
    stream = Queue("stream0", (Launch(()), Launch(((Copy(own("in", 3, 0), own("out", 5, 0)),),))))
    return Schedule("nothing", num_ranks, (Program((0,), (stream,)),), (IN, OUT), 0)


CASES: dict[str, Callable[[int], Schedule]] = {
    case.__name__: case
    for case in (
        copy_engine,
        two_engines,
        broadcast,
        swap,
        reduce,
        codec,
        lanes,
        launches,
        kernels,
        submits,
        far_host,
        calls,
        fed_calls,
        nothing,
    )
}
