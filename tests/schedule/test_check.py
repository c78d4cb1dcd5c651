"""For each thing that can be wrong a smallest schedule that is, and the commands it names."""

from __future__ import annotations

import pytest

from tests.runtime.cases import CASES
from weft.errors import BoundsError, DeadlockError, FlagError, RaceError, ScheduleError
from weft.schedule import (
    SELF,
    Broadcast,
    Buffer,
    Copy,
    Decode,
    Encode,
    Flag,
    Group,
    Index,
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
    Term,
    Wait,
    flipped,
    shifted,
)
from weft.schedule.check import check

AFTER = shifted(Group(3), 1)
BEFORE = shifted(Group(3), -1)
READY, SENT = 0, 1


def made(*queues, ranks=(0,), num_ranks=3, num_flags=2, more=()):
    buffers = (Buffer("in", 8, "in"), Buffer("out", 8, "out"), Buffer("tmp", (8, 4, 8)))
    programs = (Program(ranks, tuple(Queue(name, tuple(c)) for name, c in queues)), *more)
    return Schedule("made", num_ranks, programs, buffers, num_flags)


def own(buffer, offset=0, nbytes=8):
    return Slice(SELF, buffer, offset, nbytes)


def signal(rank, flag):
    return Signal(Flag(rank, flag))


def wait(flag, count=1):
    return Wait(Flag(SELF, flag), count)


COPY = Copy(own("in"), own("out"))
SEND = Copy(own("in"), Slice(AFTER, "out", 0, 8))
FROM_SEND = (SEND, signal(AFTER, SENT), wait(SENT))
GREET = (signal(BEFORE, READY), wait(READY))
EVERYONE = range(3)


def refused(schedule, error, *parts):
    for collapse in (True, False):
        with pytest.raises(error) as caught:
            check(schedule, collapse=collapse)
        assert type(caught.value) is error
        for part in parts:
            assert part in str(caught.value)


@pytest.mark.parametrize("name", CASES)
def test_what_can_be_run_is_right(name):
    check(CASES[name](3))
    check(CASES[name](3), collapse=False)


def test_a_schedule_of_nothing_is_right():
    check(Schedule("nothing", 3, ()))
    check(made())
    check(made(("stream0", ())))


def test_a_schedule_is_for_somebody():
    refused(Schedule("nobody", 0, ()), ScheduleError, "nobody", "num_ranks is 0,")


def test_a_program_is_for_ranks_that_exist():
    refused(made(ranks=(0, 3)), ScheduleError, "rank 3, expected 0 to 2")


def test_a_queue_has_one_of_the_known_names():
    refused(made(("strem0", ())), ScheduleError, "'strem0'")


def test_a_queue_of_a_rank_stands_in_one_program():
    twice = Program(range(1, 3), (Queue("copy0", ()),))
    refused(
        made(("copy0", ()), ranks=EVERYONE, more=(twice,)),
        ScheduleError,
        "copy0@1 ",
    )


def test_a_lane_does_not_launch():
    inner = Launch(((Kernel("x"),),))
    loop = Repeat(2, (Launch(((inner,),)),))
    lanes = Launch((Repeat(2, (inner,)),))
    hidden = Launch(((Repeat(2, (inner,)),),))
    for outer in (loop, lanes, hidden):
        named = "stream0@0 lane 0 #1 Launch cannot run on a lane"
        refused(made(("stream0", [outer])), ScheduleError, named)


@pytest.mark.parametrize(
    ("queue", "command", "named"),
    [
        ("stream0", COPY, "stream0@0 #1 Copy cannot run on a stream"),
        ("copy0", Kernel("x"), "copy0@0 #1 Kernel cannot run on a copy"),
        ("nic0", Reduce((own("in"),), own("out")), "nic0@0 #1 Reduce cannot run on a nic"),
        ("host", COPY, "host@0 #1 Copy cannot run on a host"),
        ("stream0", Submit(SELF, "copy0", 1), "stream0@0 #1 Submit cannot run on a stream"),
        ("stream0", Launch(((Submit(SELF, "copy0", 1),),)), "stream0@0 lane 0 #2 Submit cannot"),
    ],
)
def test_a_command_stands_where_it_can_be_run(queue, command, named):
    refused(made((queue, [signal(SELF, 0), command])), ScheduleError, named)


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (signal(SELF, 2), "copy0@0 #0 Signal uses flag 2@0; each of 3 ranks has 2 flags."),
        (signal(SELF, -1), "copy0@0 #0 Signal uses flag -1@0"),
        (signal(3, 0), "copy0@0 #0 Signal uses flag 0@3; each of 3 ranks"),
        (wait(2), "copy0@0 #0 Wait uses flag 2@0"),
    ],
)
def test_a_flag_is_one_that_exists(command, named):
    refused(made(("copy0", [command])), BoundsError, named)


def test_a_hold_is_a_flag_that_exists():
    queues = (("host", [Submit(SELF, "copy0", 1, hold=Flag(-1, 0))]), ("copy0", [COPY]))
    refused(made(*queues), BoundsError, "host@0 #0 Submit uses flag 0@-1")


def test_a_rank_waits_for_its_own_flags():
    commands = [Wait(Flag(AFTER, 0))]
    refused(made(("copy0", commands)), ScheduleError, "copy0@0 #0 Wait waits for a flag of rank 1.")


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (
            Copy(own("in", 1), own("out")),
            "copy0@0 #0 Copy accesses bytes 1 to 9 of in@0, which has",
        ),
        (Copy(own("in", -1), own("out")), "copy0@0 #0 Copy accesses bytes -1 to 7 of in@0"),
        (Copy(own("in"), Slice(1, "tmp", 0, 8)), "accesses bytes 0 to 8 of tmp@1, which has 4."),
        (Copy(own("in", 4, -4), own("out", 4, -4)), "accesses bytes 4 to 0 of in@0"),
        (
            Repeat(3, (Copy(own("in", Rel(0, (3,)), 4), own("out", 0, 4)),)),
            "copy0@0 #2 Copy access",
        ),
        (
            Copy(own("in", 1 << 62, 1 << 62), own("out")),
            f"accesses bytes {1 << 62} to {1 << 63} of",
        ),
        (Copy(own("in"), own("out", 0, 4)), "copy0@0 #0 Copy has slices of different sizes."),
        (
            Broadcast(own("in", 0, 4), (own("out", 0, 4), own("out", 4, 3))),
            "copy0@0 #0 Broadcast has slices of different sizes.",
        ),
    ],
)
def test_a_slice_lies_in_its_buffer(command, named):
    refused(made(("copy0", [command])), BoundsError, named)


def test_a_wait_has_its_signals():
    commands = [signal(AFTER, 0), wait(0, 2)]
    refused(
        made(("copy0", commands), ranks=EVERYONE),
        FlagError,
        "copy0@0 #1 Wait waits for 2 signals of flag 0@0, which receives 1.",
    )


def test_a_wait_for_more_than_32_bits_has_its_signals():
    refused(made(("copy0", [wait(0, 1 << 32)])), FlagError, "waits for 4294967296 signals")


@pytest.mark.parametrize("queue", ["copy0", "cpy0"])
def test_a_submit_feeds_a_queue_that_has_commands(queue):
    commands = [Submit(AFTER, queue, 1)]
    named = f"host@0 #0 Submit submits to {queue}@1, which has no co"
    refused(made(("host", commands)), FlagError, named)


def test_a_submit_hands_over_something():
    queues = (("host", [Submit(SELF, "copy0", 2), Submit(SELF, "copy0", -1)]), ("copy0", [COPY]))
    refused(made(*queues), ScheduleError, "host@0 #1 Submit: count is -1,")


def test_a_queue_is_fed_all_its_commands():
    queues = (("host", [Submit(SELF, "copy0", 2)]), ("copy0", [COPY]))
    refused(made(*queues), FlagError, "2 commands are submitted to copy0@0, which has 1.")


def test_ranks_that_wait_for_each_other_never_start():
    commands = [wait(0), signal(AFTER, 0)]
    refused(
        made(("copy0", commands)),
        FlagError,
        "copy0@0 #0 Wait waits for 1 signals of flag 0@0, which receives 0.",
    )
    refused(
        made(("copy0", commands), ranks=EVERYONE),
        DeadlockError,
        "commands can never start: copy0@0 #0 Wait (flag 0, 0 of 1 signals)",
    )


@pytest.mark.parametrize(("count", "others"), [(4, r"signals\)"), (6, " and 2 more")])
def test_the_first_stuck_commands_are_named_and_the_others_counted(count, others):
    crossed = [(f"copy{k}", [wait(k), signal(SELF, count - 1 - k)]) for k in range(count)]
    with pytest.raises(
        DeadlockError, match=rf"^deadlock: {count} commands can never start: .*{others}\.$"
    ):
        check(made(*crossed, num_flags=count))


def test_what_is_submitted_too_late_never_starts():
    queues = (("host", [wait(0), Submit(SELF, "copy0", 1)]), ("copy0", [signal(SELF, 0)]))
    refused(made(*queues), DeadlockError, "host@0 #0 Wait (flag 0, 0 of 1 signals)")


def test_what_is_held_for_good_never_starts():
    submit = Submit(SELF, "copy0", 2, hold=Flag(SELF, 0))
    queues = (("host", [submit, wait(1), signal(SELF, 0)]), ("copy0", [COPY, signal(SELF, 1)]))
    refused(made(*queues), DeadlockError, "copy0@0 #0 Copy", "host@0 #1 Wait (flag 1, 0 of 1")


def test_a_hold_that_nobody_releases_is_missed():
    submit = Submit(SELF, "copy0", 1, hold=Flag(SELF, 0))
    refused(made(("host", [submit]), ("copy0", [COPY])), FlagError, "flag 0@0, which receives 0")


def test_nobody_is_touched_before_it_has_entered():
    early = made(("copy0", FROM_SEND), ranks=EVERYONE)
    refused(early, RaceError, " #0 Copy may access the buffers of rank ")
    with pytest.raises(
        RaceError, match=r"copy0@. #0 Copy may access the buffers of rank . before "
    ):
        check(early)


def test_nobody_is_touched_after_it_has_left():
    refused(
        made(("copy0", [*GREET, SEND]), ranks=EVERYONE),
        RaceError,
        "copy0@0 #2 Copy may still access the buffers of rank 1 after that rank has left.",
    )
    early = [*GREET, signal(AFTER, SENT), SEND, wait(SENT)]
    refused(made(("copy0", early), ranks=EVERYONE), RaceError, "copy0@0 #3 Copy may still access")
    check(made(("copy0", [*GREET, *FROM_SEND]), ranks=EVERYONE))


def test_two_writes_have_an_order():
    queues = (("copy0", [COPY, signal(SELF, 0)]), ("copy1", [COPY, signal(SELF, 1)]))
    end = ("stream0", [wait(0), wait(1)])
    refused(
        made(*queues, end), RaceError, "copy0@0 #0 Copy and copy1@0 #0 Copy access the same byt"
    )
    ordered = (("copy0", [COPY, signal(SELF, 0)]), ("copy1", [wait(0), COPY]))
    check(made(*ordered))


def test_a_write_and_a_read_have_an_order():
    read = Copy(own("out"), own("tmp"))
    late = (("copy0", [COPY, signal(SELF, 0)]), ("copy1", [read, wait(0)]))
    refused(made(*late), RaceError, "copy0@0 #0 Copy and copy1@0 #0 Copy access the same bytes")
    check(made(("copy0", [COPY, signal(SELF, 0)]), ("copy1", [wait(0), read])))


def test_reads_need_no_order():
    queues = [(f"copy{k}", [Copy(own("in", 0, 4), own("out", 4 * k, 4))]) for k in range(2)]
    check(made(*queues))


def test_lanes_run_side_by_side():
    lanes = ((COPY,), (COPY,))
    refused(made(("stream0", [Launch(lanes)])), RaceError, "stream0@0 lane 0 #1 Copy and stream0@0")
    check(made(("stream0", [Launch(lanes[:1]), Launch(lanes[:1])])))


def test_one_of_two_signals_may_be_the_other_one():
    """A wait for one signal of two senders is sure of neither."""
    first = ("copy0", [COPY, signal(SELF, 0)])
    second = ("copy1", [signal(SELF, 0)])
    read = ("copy2", [wait(0, 1), Copy(own("out"), own("tmp"))])
    both = ("copy2", [wait(0, 2), Copy(own("out"), own("tmp"))])
    refused(made(first, second, read), RaceError, "copy0@0 #0 Copy and copy2@0 #1 Copy")
    check(made(first, second, both))


def told_by_two(*first):
    """Rank 0 reads from rank 2 when 1 and 2 have raised one flag; ``first`` is what 1 does."""
    read = Copy(Slice(2, "in", 0, 8), own("out"))
    last = (signal(0, READY), wait(SENT))
    return made(
        ("copy0", [wait(READY, 2), read, signal(1, SENT), signal(2, SENT)]),
        more=(
            Program((1,), (Queue("copy0", first),)),
            Program((2,), (Queue("copy0", last),)),
        ),
    )


def test_who_is_an_execution_ahead_does_not_stand_for_another():
    """Rank 1 may raise the flag twice before rank 2 has entered, unless it waits for rank 0."""
    ahead = told_by_two(signal(0, READY))
    refused(ahead, RaceError, "copy0@0 #1 Copy may access the buffers of rank 2 before that rank")
    with pytest.raises(RaceError) as caught:
        check(ahead)
    assert "No wait is sure of flag 0@0: several raise it" in caught.value.hint
    check(told_by_two(signal(0, READY), wait(SENT)))


def rotated(place, nbytes=16):
    """Each rank copies 4 bytes of ``a`` at a place of its own, three alike."""
    copy = Copy(Slice(SELF, "a", place, 4), Slice(SELF, "b", 0, 4))
    program = Program(range(4), (Queue("copy0", (copy,)),))
    return Schedule("alike", 4, (program,), (Buffer("a", nbytes, "in"), Buffer("b", 4)))


def test_offsets_of_ranks_that_are_alike_lie_in_the_buffer():
    place = Rel(0, (), (Term(Index(Group(4)), 4),))
    check(rotated(place))
    refused(
        rotated(Rel(1, (), place.terms)), BoundsError, "copy0@3 #0 Copy accesses bytes 13 to 17"
    )


def test_a_table_of_equal_entries_moves_an_offset_too():
    terms = (Term(Index(Group(4)), 4), Term(Index(Group(4)), table=(1,) * 4))
    refused(rotated(Rel(0, (), terms)), BoundsError, "copy0@3 #0 Copy accesses bytes 13 to 17")


def side_by_side(first, second, *more):
    """Two lanes of each of two ranks write 4 bytes of ``a``."""
    x = Slice(SELF, "x", 0, 4)
    once, often = (Copy(x, Slice(SELF, "a", place, 4)) for place in (second, first))
    launch = Launch(((once,), (Repeat(3, (often,)),), *more))
    program = Program(range(2), (Queue("stream0", (launch,)),))
    return Schedule("alike", 2, (program,), (Buffer("a", 16, "inout"), Buffer("x", 4, "in")), 1)


def test_a_loop_whose_last_round_alone_is_a_block_further_is_not_alike():
    mine, other = Term(Index(Group(2)), 4), Term(Index(Group(2), 1), 4)
    refused(
        side_by_side(Rel(0, (4,), (mine,)), Rel(8, (), (other,))),
        RaceError,
        "stream0@1 lane 0 #1 Copy and stream0@1 lane 1 #3 Copy",
    )


def test_a_mask_that_leaves_out_a_chunk_is_not_alike():
    neighbour = Term(Index(Group(2), 1, xor=True), 4)
    first = Term(Index(Group(2), xor=True, mask=0), 4)
    flips = (signal(flipped(Group(2), 1), 0),)
    refused(
        side_by_side(Rel(0, (), (first,)), Rel(0, (), (neighbour,)), flips),
        RaceError,
        "stream0@1 lane 0 #1 Copy and stream0@1 lane 1 #",
    )


def test_ranks_that_are_alike_do_not_race_where_their_offsets_meet():
    group = Group(4)
    after, before = shifted(group, 1), shifted(group, -1)
    place = Rel(0, (), (Term(Index(group), table=(0, 4, 8, 8)),))
    mine = (Copy(Slice(SELF, "x", 0, 4), Slice(SELF, "a", place, 4)),)
    send = (
        *(signal(before, READY), wait(READY)),
        Copy(Slice(SELF, "x", 0, 4), Slice(after, "a", place, 4)),
        *(signal(after, SENT), wait(SENT)),
    )
    queue = Queue("stream0", (Launch((mine, send)),))
    buffers = (Buffer("a", 16, "inout"), Buffer("x", 4, "in"))
    schedule = Schedule("alike", 4, (Program(range(4), (queue,)),), buffers, 2)
    refused(schedule, RaceError, "stream0@3 lane 0 #1 Copy and stream0@2 lane 1 #4 Copy")


@pytest.mark.parametrize(
    "command",
    [
        Signal(Flag(-3, 0)),
        Copy(own("in"), Slice(7, "out", 0, 8)),
        Copy(own("in"), Slice(-1, "out", 0, 8)),
        Copy(own("in", 0, 4), Slice(7, "tmp", 0, 4)),
    ],
)
def test_a_rank_that_is_named_exists(command):
    refused(made(("copy0", [command])), BoundsError, "copy0@0 #0")


def reduced(nbytes, dtype, op):
    add = Reduce((own("in", 0, nbytes),), own("out", 0, nbytes), dtype, op)
    return made(("stream0", [Launch(((add,),), units=1)]))


def test_a_reduction_that_the_core_lacks_is_named_with_those_it_has():
    check(reduced(8, "float32", "premul:0.5"))
    with pytest.raises(
        ScheduleError, match=r"'mean' for float32 \(expected one of sum, avg, .*max"
    ):
        check(reduced(8, "float32", "mean"))
    with pytest.raises(ScheduleError, match="knows dtype 'float12'"):
        check(reduced(8, "float12", "sum"))
    with pytest.raises(BoundsError, match="6 bytes, expected a multiple of 4"):
        check(reduced(6, "float32", "sum"))


@pytest.mark.parametrize(
    "command",
    [
        Broadcast(own("in", 0, 4), (own("out", 0, 4), own("in", 2, 4))),
        Swap(own("in", 0, 4), own("in", 3, 4)),
        Reduce((own("out", 0, 4), own("in", 0, 4)), own("in", 1, 4)),
        Encode(own("in", 0, 1), own("in", 0, 8), "none", "float32"),
        Decode(own("in", 0, 8), own("in", 4, 1), "none", "float32"),
    ],
    ids=lambda command: type(command).__name__,
)
def test_a_command_does_not_write_over_what_it_reads(command):
    with pytest.raises(ScheduleError, match="writes bytes that it still reads"):
        check(made(("stream0", [Launch(((command,),), units=1)])))


def test_a_sum_may_be_written_to_one_of_its_sources_and_a_copy_anywhere():
    add = Reduce((own("in"), own("out")), own("out"), "float32")
    move = Copy(own("in", 0, 4), own("in", 2, 4))
    check(made(("stream0", [Launch(((add,),), units=1)]), ("copy0", [])))
    check(made(("copy0", [move])))
