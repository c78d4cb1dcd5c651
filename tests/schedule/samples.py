"""Schedules for the tests of this room: random ones, and one with a bit of everything."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.runtime import cases
from weft.schedule import (
    SELF,
    Broadcast,
    Buffer,
    Call,
    Copy,
    Cost,
    Decode,
    Encode,
    Flag,
    Group,
    Index,
    Kernel,
    Launch,
    Peer,
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
    Term,
    Wait,
)

small = st.integers(-9, 99)
counts = st.integers(1, 9)
names = st.sampled_from(["in", "out", "stream0", "copy12", "host", "größer", "a b"])
dtypes = st.sampled_from(["uint8", "float32"])


def tuples(strategy, at_most=3):
    return st.lists(strategy, max_size=at_most).map(tuple)


groups = st.builds(Group, counts, counts, tuples(st.integers(0, 9)))
indices = st.builds(Index, groups, small, tuples(small), st.booleans(), small)
terms = st.builds(Term, indices, small) | st.builds(
    lambda index, value: Term(index, table=(value,) * index.group.size), indices, small
)
values = small | st.builds(Rel, small, tuples(small), tuples(terms))
ranks = st.integers(0, 9) | st.builds(Peer, indices) | st.just(SELF)
slices = st.builds(Slice, ranks, names, values, values)
flags = st.builds(Flag, ranks, values)
costs = st.builds(
    Cost, names, tuples(counts), dtypes, st.floats(0, 1e18), st.integers(0, 1 << 50), counts
)
leaves = st.one_of(
    st.builds(Kernel, names, costs, tuples(slices), tuples(slices), st.booleans()),
    st.builds(Copy, slices, slices),
    st.builds(Broadcast, slices, tuples(slices)),
    st.builds(Swap, slices, slices),
    st.builds(Reduce, tuples(slices), slices, dtypes, st.sampled_from(["sum", "max"])),
    st.builds(Encode, slices, slices, names, dtypes),
    st.builds(Decode, slices, slices, names, dtypes),
    st.builds(Signal, flags),
    st.builds(Wait, flags, values),
    st.builds(Submit, ranks, names, values, st.none() | flags),
)


def _around(items):
    loops = st.builds(Repeat, counts, tuples(items))
    optional = st.none() | counts
    return loops | st.builds(Launch, tuples(tuples(items) | loops), optional, optional)


commands = st.recursive(leaves, _around, max_leaves=6)


def schedules(items=commands):
    queues = st.builds(
        Queue, names, tuples(items), ranks, small, st.none() | st.tuples(counts, counts)
    )
    some_ranks = st.builds(range, st.just(0), st.integers(0, 9), counts) | tuples(counts)
    programs = st.builds(Program, some_ranks, tuples(queues))
    roles = st.sampled_from(["in", "out", "inout", "scratch"])
    buffers = st.builds(Buffer, names, counts | st.just((1,) * 9), roles)
    ratios = tuples(st.tuples(names, st.floats(1, 9)))
    return st.builds(
        Schedule, names, st.just(9), tuples(programs), tuples(buffers), st.integers(0, 9), ratios
    )


bindings = tuples(st.tuples(names, names, values))
calls = st.builds(Call, names, schedules(), groups, bindings, tuples(st.tuples(names, names)))


def sample() -> Schedule:
    """What tests/data/schedule-v1.json holds: each command of version 1, and it can be run."""
    num_ranks = 4
    group = Group(num_ranks)
    parts = (
        *(cases.copy_engine, cases.reduce, cases.codec, cases.kernels),
        *(cases.lanes, cases.launches, cases.swap),
    )
    calls = tuple(
        Call(f"{n} {part.__name__}", part(num_ranks), group) for n, part in enumerate(parts)
    )
    table = (*range(1, num_ranks), 0)
    size = Rel(terms=(Term(Index(group), table=(8, 7, 6, 5)),))
    last = (
        Signal(Flag(Peer(Index(group), table), Rel(0, (), (Term(Index(group, 3), 0),)))),
        Wait(Flag(SELF, 0)),
        Kernel("step", Cost("gemm", (8, 8, 8), "float32", 1024.0, 768, 1), external=True),
        Reduce(
            (Slice(SELF, "data", 0, size), Slice(SELF, "more", 0, size)),
            Slice(SELF, "data", 0, size),
            op="max",
        ),
    )
    buffers = (Buffer("data", 8, "inout"), Buffer("more", (8, 9, 10, 11), "in"), Buffer("spare", 8))
    queue = Queue("stream0", (*calls, *last), priority=1, units=(0, 64))
    copy = Copy(Slice(SELF, "more", 0, 8), Slice(SELF, "spare", 0, 8))
    engine = Queue("copy7", (Repeat(2, (copy,)), Signal(Flag(SELF, 2))))
    hold = Flag(SELF, 1)
    host = Queue("host", (Submit(SELF, "copy7", 3, hold), Signal(hold), Wait(Flag(SELF, 2))))
    fan_out = cases.broadcast(num_ranks)
    renamed = (("stream0", "stream5"), ("copy0", "copy5"))
    second = Queue("stream5", (Call("far", fan_out, group, queues=renamed),))
    programs = (Program(range(num_ranks), (queue, engine, host)), Program((0, 1, 2, 3), (second,)))
    return Schedule("a bit of everything", num_ranks, programs, buffers, 3, (("none", 1.5),))
