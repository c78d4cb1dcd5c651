"""Timelines made by hand, for tests of what is computed from them."""

import numpy as np

from weft.schedule import (
    SELF,
    Buffer,
    Call,
    Copy,
    Flag,
    Group,
    Kernel,
    Launch,
    Program,
    Queue,
    Schedule,
    Signal,
    Slice,
    Submit,
    Wait,
    expand,
    shifted,
)
from weft.timeline import Timeline


def piece(rank=SELF, nbytes=8, buffer="x"):
    return Slice(rank, buffer, 0, nbytes)


def copy(nbytes=8):
    return Copy(piece(nbytes=nbytes), piece(nbytes=nbytes, buffer="y"))


def schedule(*queues, num_ranks=1, num_flags=4):
    return Schedule(
        "hand-made",
        num_ranks,
        (Program(range(num_ranks), tuple(Queue(name, commands) for name, commands in queues)),),
        (Buffer("x", 1024), Buffer("y", 1024)),
        num_flags,
    )


def timed(made, times, **options):
    """``times`` are (start, end) in the order of the table, None for a row without a time."""
    pairs = [(np.nan, np.nan) if pair is None else pair for pair in times]
    start, end = np.array(pairs, np.float64).reshape(-1, 2).T
    options = {"basis": "predicted", "platform": "paper", **options}
    return Timeline.from_table(expand(made), start, end, **options)


def overlapping():
    """A kernel from 0 to 4, a copy from 3 to 6 and another from 8 to 9 on a second stream."""
    made = schedule(("copy0", (copy(), copy(16))), ("stream0", (Kernel("gemm"),)))
    return timed(made, [(3, 6), (8, 9), (0, 4)])


def handshake():
    """Each of two ranks launches: copy, signal the other, wait for the other."""
    other = shifted(Group(2), 1)
    lane = (Copy(piece(), piece(other, buffer="y")), Signal(Flag(other, 0)), Wait(Flag(SELF, 0)))
    made = schedule(("stream0", (Launch((lane,)), Kernel("after"))), num_ranks=2)
    first = [(0, 5), (1, 2), (2, 2), (2, 5), (5, 7)]
    second = [(0, 5), (1, 4), (4, 5), (5, 5), (5, 6)]
    return timed(made, first + second)


def called():
    """A Kernel, then a Call that copies on a copy queue of its own."""
    inner = Schedule(
        "inner",
        1,
        (Program(range(1), (Queue("stream0", ()), Queue("copy0", (copy(),)))),),
        (Buffer("x", 1024), Buffer("y", 1024)),
    )
    call = Call("gather", inner, Group(1), (("x", "x", 0), ("y", "y", 0)))
    made = schedule(("stream0", (Kernel("gemm"), call)))
    rows = {
        ("stream0", 0): (0, 4),
        ("stream0", 1): None,
        ("stream0", 2): (4, 4),
        ("stream0", 3): (4, 9),
        ("copy0", 0): None,
        ("copy0", 1): (0, 5),
        ("copy0", 2): (5, 8),
        ("copy0", 3): (8, 9),
    }
    table = expand(made)
    queues = [table.queues[table.thread_queue[thread]] for thread in table.thread]
    times = [rows[queue, int(number)] for queue, number in zip(queues, table.id, strict=True)]
    return timed(made, times)


def submitted(*, hold=False):
    """The host hands two copies over, one by one."""
    flag = Flag(0, 0) if hold else None
    host = (Submit(SELF, "copy0", 1, flag), Submit(SELF, "copy0", 1, flag))
    made = schedule(("copy0", (copy(), copy())), ("host", host))
    return timed(made, [(2, 3), (5, 6), (0, 2), (2, 5)])
