"""The buffer slices that a command reads and writes."""

from collections.abc import Iterator
from typing import NamedTuple

from weft.schedule.ir import (
    Broadcast,
    Call,
    Command,
    Copy,
    Decode,
    Encode,
    Kernel,
    Launch,
    Reduce,
    Scope,
    Signal,
    Slice,
    Submit,
    Swap,
    Wait,
)

READ, WRITE = 1, 2


class Access(NamedTuple):
    """One slice of a command, and whether the command reads or writes it."""

    mode: int
    slice: Slice


def accesses(command: Command) -> Iterator[Access]:  # noqa: C901 - one case a command
    """Yield the slices a command accesses: sources in order, then destinations."""
    match command:
        case Copy(src, dst) | Encode(src, dst) | Decode(src, dst):
            yield Access(READ, src)
            yield Access(WRITE, dst)
        case Broadcast(src, dsts):
            yield Access(READ, src)
            for dst in dsts:
                yield Access(WRITE, dst)
        case Swap(a, b):
            yield Access(READ | WRITE, a)
            yield Access(READ | WRITE, b)
        case Reduce(srcs, dst):
            for src in srcs:
                yield Access(READ, src)
            yield Access(WRITE, dst)
        case Kernel():
            for src in command.reads:
                yield Access(READ, src)
            for dst in command.writes:
                yield Access(WRITE, dst)
        case Launch() | Signal() | Wait() | Submit() | Call() | Scope():
            return
