"""Calls bound into their callers, executed on arrays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.arrays import Machine
from weft.collectives import collective
from weft.errors import ScheduleError
from weft.schedule import (
    SELF,
    Buffer,
    Call,
    Copy,
    Flag,
    Group,
    Index,
    Kernel,
    Launch,
    Program,
    Queue,
    Rel,
    Repeat,
    Schedule,
    Scope,
    Signal,
    Slice,
    Term,
    Wait,
    shifted,
)
from weft.schedule.check import check
from weft.schedule.inline import as_ranks, inline

SIZE = 5


def pass_on(num_ranks):
    """Each rank's ``src`` goes to the next one's ``dst``: by an engine, through scratch."""
    after, before = shifted(Group(num_ranks), 1), shifted(Group(num_ranks), -1)
    engine = (
        Signal(Flag(before, 0)),
        Wait(Flag(SELF, 0)),
        Copy(Slice(SELF, "src", 0, SIZE), Slice(after, "kept", 0, SIZE)),
        Signal(Flag(after, 1)),
    )
    here = Copy(Slice(SELF, "kept", 0, SIZE), Slice(SELF, "dst", 0, SIZE))
    stream = (Wait(Flag(SELF, 1)), Launch(((here,),)))
    queues = (Queue("stream0", stream), Queue("copy0", engine))
    buffers = (Buffer("src", SIZE, "in"), Buffer("dst", SIZE, "out"), Buffer("kept", SIZE))
    return Schedule("pass on", num_ranks, (Program(range(num_ranks), queues),), buffers, 2)


def from_first(num_ranks):
    """Rank 0 gives, the others take; they say first that they are there."""
    data = Slice(SELF, "data", 0, SIZE)
    peer = shifted(Group(num_ranks), 1, 1)
    send = Repeat(num_ranks - 1, (Copy(data, Slice(peer, "data", 0, SIZE)), Signal(Flag(peer, 0))))
    root = Launch(((Wait(Flag(SELF, 0), num_ranks - 1), send),))
    other = Launch(((Signal(Flag(0, 0)), Wait(Flag(SELF, 0))),))
    programs = (
        Program((0,), (Queue("stream0", (root,)),)),
        Program(range(1, num_ranks), (Queue("stream0", (other,)),)),
    )
    return Schedule("from first", num_ranks, programs, (Buffer("data", SIZE, "inout"),), 1)


def outer(*programs, buffers=("a", "b"), num_ranks=6):
    sizes = tuple(Buffer(name, 4 * SIZE, "inout") for name in buffers)
    return Schedule("outer", num_ranks, programs, sizes, 1)


def executed(schedule, seed=0):
    """Memory before and after two executions in a row, checked first."""
    check(schedule)
    check(schedule, collapse=False)
    machine = Machine(schedule, seed)
    for execution in range(2):
        before = {
            key: np.random.default_rng([execution, *key[1].encode(), key[0]]).integers(
                0, 256, len(values), np.uint8
            )
            for key, values in machine.memory.items()
        }
        for key, values in before.items():
            machine.memory[key][:] = values
        machine.run()
    return before, machine.memory


def moved(group, by=1):
    """The call that passes on inside ``group``, from a to b."""
    buffers = (("src", "a", 0), ("dst", "b", SIZE))
    call = Call("move", pass_on(group.size), group, buffers)
    return Program(group.ranks or range(6), (Queue("stream0", (call,)),))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("group", "previous"),
    [
        (Group(6), {0: 5, 1: 0, 2: 1, 3: 2, 4: 3, 5: 4}),
        (Group(3), {0: 2, 1: 0, 2: 1, 3: 5, 4: 3, 5: 4}),
        (Group(2, 3), {0: 3, 3: 0, 1: 4, 4: 1, 2: 5, 5: 2}),
        (Group(3, 1, (4, 0, 1)), {4: 1, 0: 4, 1: 0}),
    ],
)
def test_a_call_is_bound_to_its_group(group, previous, seed):
    before, after = executed(outer(moved(group)), seed)
    for rank in range(6):
        want = before[rank, "b"].copy()
        if rank in previous:
            want[SIZE : 2 * SIZE] = before[previous[rank], "a"][:SIZE]
        assert np.array_equal(after[rank, "b"], want)
        assert np.array_equal(after[rank, "a"], before[rank, "a"])


def test_a_buffer_may_start_at_another_place_in_each_call():
    inside = Group(2)
    offset = Rel(0, (), (Term(Index(Group(3, 2)), SIZE),))  # equal inside a call
    call = Call("move", pass_on(2), inside, (("src", "a", offset), ("dst", "b", 0)))
    before, after = executed(outer(Program(range(6), (Queue("stream0", (call,)),))))
    for rank in range(6):
        at = rank // 2 * SIZE
        assert np.array_equal(after[rank, "b"][:SIZE], before[rank ^ 1, "a"][at : at + SIZE])


def test_two_calls_share_neither_flags_nor_scratch():
    first = Call("one", pass_on(6), Group(6), (("src", "a", 0), ("dst", "b", 0)))
    second = Call("two", pass_on(6), Group(6), (("src", "b", 0), ("dst", "a", SIZE)))
    schedule = outer(Program(range(6), (Queue("stream0", (first, second)),)))
    flat = inline(schedule)
    assert [b.name for b in flat.buffers] == ["a", "b", "one.kept", "two.kept"]
    assert flat.num_flags == 1 + 2 * (2 + 2 + 1)  # own, then inner, a start a queue, one end
    before, after = executed(schedule)
    for rank in range(6):
        assert np.array_equal(
            after[rank, "a"][SIZE : 2 * SIZE], before[rank - 2 + 6 * (rank < 2), "a"][:SIZE]
        )


def test_queues_of_a_call_start_with_it_and_are_joined_at_its_end():
    flat = inline(outer(moved(Group(6))))
    stream, engine = flat.programs[0].queues
    (called,), (forked,) = stream.commands, engine.commands
    assert isinstance(called, Scope)
    assert isinstance(forked, Scope)
    start, done = called.enter[0].flag, called.leave[0].flag
    assert forked.enter == (Wait(start),)
    assert forked.leave == (Signal(done),)
    assert called.leave == (Wait(done, 1),)


def test_queues_are_renamed():
    call = Call(
        "move", pass_on(6), Group(6), (("src", "a", 0), ("dst", "b", 0)), (("copy0", "nic2"),)
    )
    schedule = outer(Program(range(6), (Queue("stream0", (call,)),)))
    assert {place.queue for place, _ in schedule.commands([0])} == {"stream0", "nic2"}
    before, after = executed(schedule)
    assert np.array_equal(after[1, "b"][:SIZE], before[0, "a"][:SIZE])


def test_a_call_on_one_of_its_other_queues_forks_the_stream_too():
    call = Call("move", pass_on(6), Group(6), (("src", "a", 0), ("dst", "b", 0)))
    flat = inline(outer(Program(range(6), (Queue("copy0", (call,)),))))
    assert [queue.name for queue in flat.programs[0].queues] == ["copy0", "stream0"]
    before, after = executed(outer(Program(range(6), (Queue("copy0", (call,)),))))
    assert np.array_equal(after[3, "b"][:SIZE], before[2, "a"][:SIZE])


def test_ranks_play_the_parts_that_their_positions_have():
    call = Call("give", from_first(3), Group(3), (("data", "a", 0),))
    schedule = outer(Program(range(6), (Queue("stream0", (call,)),)))
    assert {p.ranks for p in inline(schedule).programs} == {range(0, 4, 3), (1, 2, 4, 5)}
    before, after = executed(schedule)
    for rank in range(6):
        assert np.array_equal(after[rank, "a"][:SIZE], before[rank // 3 * 3, "a"][:SIZE])


def test_calls_nest():
    data = (("data", "data", 0),)
    across = Call("across", from_first(3), Group(3, 2), data)
    inside = Call("inside", from_first(2), Group(2), data)
    programs = (
        Program(range(0, 6, 2), (Queue("stream0", (across, inside)),)),
        Program(range(1, 6, 2), (Queue("stream0", (inside,)),)),
    )
    both = Schedule("both", 6, programs, (Buffer("data", SIZE, "inout"),), 0)
    twelve = tuple(range(11, -1, -1))
    call = Call("all", both, Group(6, 2, twelve), (("data", "a", SIZE),))
    schedule = outer(Program(twelve, (Queue("stream0", (call,)),)), num_ranks=12)
    before, after = executed(schedule)
    for rank in range(12):
        root = 11 if rank % 2 else 10
        assert np.array_equal(after[rank, "a"][SIZE : 2 * SIZE], before[root, "a"][SIZE : 2 * SIZE])


def test_what_stands_around_a_call_keeps_its_place():
    call = Call("move", pass_on(6), Group(6), (("src", "a", 0), ("dst", "b", 0)))
    queue = Queue("stream0", (Kernel("x", external=True), call, Kernel("y", external=True)))
    flat = inline(outer(Program(range(6), (queue,))))
    kinds = [type(c).__name__ for c in flat.programs[0].queues[0].commands]
    assert kinds == ["Kernel", "Scope", "Kernel"]


def test_a_schedule_without_calls_stays_what_it_is():
    schedule = pass_on(3)
    assert inline(schedule) is schedule


@pytest.mark.parametrize("wrap", [lambda c: Repeat(2, (c,)), lambda c: Launch(((c,),))])
def test_a_call_inside_a_loop_or_a_launch_is_refused(wrap):
    call = Call("move", pass_on(6), Group(6), (("src", "a", 0), ("dst", "b", 0)))
    schedule = outer(Program(range(6), (Queue("stream0", (wrap(call),)),)))
    with pytest.raises(ScheduleError, match="stream0: a Call"):
        inline(schedule)


ONE = Call("move", pass_on(6), Group(6), (("src", "a", 0), ("dst", "b", 0)))
OTHER = replace(ONE, buffers=(("src", "b", 0), ("dst", "a", 0)))


@pytest.mark.parametrize(
    "programs",
    [
        (Program(range(6), (Queue("stream0", (ONE, ONE)),)),),
        (Program(range(6), (Queue("stream0", (ONE,)), Queue("stream1", (ONE,)))),),
        (
            Program(range(3), (Queue("stream0", (ONE,)),)),
            Program(range(3, 6), (Queue("stream0", (OTHER,)),)),
        ),
    ],
)
def test_calls_of_one_name_are_one_call(programs):
    with pytest.raises(ScheduleError, match=r"schedule outer: .* named 'move'"):
        inline(outer(*programs))


def calling(schedule, group, num_ranks=12):
    call = Call("all", schedule, group, (("data", "a", 0),))
    programs = (Program(range(num_ranks), (Queue("stream0", (call,)),)),)
    return outer(*programs, num_ranks=num_ranks)


def test_a_call_has_as_many_ranks_as_what_it_calls():
    with pytest.raises(ScheduleError, match="has 3 ranks, expected 4"):
        inline(calling(from_first(3), Group(4)))


def test_groups_of_what_is_called_nest_in_those_of_the_call():
    """Halving and doubling of six ranks is done by groups of four and of six."""
    six = collective("all_reduce", "halving-doubling", num_ranks=6, nbytes=SIZE)
    for group in (Group(6), Group(6, 1, tuple(range(12)))):
        with pytest.raises(ScheduleError, match=r"call all: halving-doubling .* do not nest in"):
            inline(calling(six, group))
    before, after = executed(calling(six, Group(6), num_ranks=6))
    total = sum(before[rank, "a"][:SIZE] for rank in range(6))
    assert all(np.array_equal(after[rank, "a"][:SIZE], total) for rank in range(6))


def test_ratios_of_what_is_called_are_kept_unless_the_caller_knows_better():
    inner = replace(from_first(6), ratios=(("pack", 2.0), ("int8", 4.0)))
    schedule = replace(calling(inner, Group(6), num_ranks=6), ratios=(("pack", 3.0),))
    assert dict(inline(schedule).ratios) == {"pack": 3.0, "int8": 4.0}


@pytest.mark.parametrize(
    ("ranks", "kept"),
    [
        ([0, 1, 2], range(3)),
        ([5], range(5, 6)),
        ([1, 4, 7], range(1, 8, 3)),
        ([0, 1, 3], (0, 1, 3)),
        ([2, 1, 0], (2, 1, 0)),
        ([1, 1], (1, 1)),
    ],
)
def test_ranks_that_stand_evenly_are_a_range(ranks, kept):
    assert as_ranks(np.array(ranks)) == kept
