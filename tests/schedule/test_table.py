"""The written-out table: one rank's rows are its rows in the whole, and nothing else differs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.runtime.cases import CASES
from tests.schedule.samples import sample
from weft.collectives import collective
from weft.errors import ScheduleError, TooLargeError
from weft.schedule import (
    READ,
    SELF,
    WRITE,
    Buffer,
    CommandKind,
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
    Signal,
    Slice,
    Submit,
    Term,
    Wait,
    expand,
    shifted,
)
from weft.schedule.schedule import commands_of

SCHEDULES = {
    **{name: make(4) for name, make in CASES.items()},
    "sample": sample(),
    "hierarchical": collective("all_reduce", "hierarchical", num_ranks=6, nbytes=45, node_size=3),
    "dma": collective("all_gather", "dma-bcst+prelaunch", num_ranks=4, nbytes=44),
    "swap": collective("all_to_all", "dma-swap", num_ranks=5, nbytes=45),
}
ROW_COLUMNS = ("kind", "id", "fed", "flag_rank", "flag_index", "count", "target_rank")


def rows_of(table, rank):
    return np.flatnonzero(table.thread_rank[table.thread] == rank)


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_rank_alone_has_the_rows_it_has_among_all(name):
    schedule = SCHEDULES[name]
    whole = expand(schedule)
    commands = list(commands_of(whole))
    assert whole.num_rows == len(commands)
    for rank in range(schedule.num_ranks):
        alone, rows = expand(schedule, [rank]), rows_of(whole, rank)
        for column in ROW_COLUMNS:
            assert getattr(alone, column).tolist() == getattr(whole, column)[rows].tolist()
        assert list(commands_of(alone)) == [commands[row] for row in rows]
        assert list(schedule.commands([rank])) == list(commands_of(alone))
    assert sorted(map(repr, schedule.commands())) == sorted(map(repr, commands))


@pytest.mark.parametrize("name", SCHEDULES)
def test_an_id_is_the_place_in_its_queue(name):
    schedule = SCHEDULES[name]
    places = [place for place, _ in schedule.commands()]
    for rank, queue in {(place.rank, place.queue) for place in places}:
        ids = [p.id for p in places if (p.rank, p.queue) == (rank, queue)]
        assert ids == list(range(len(ids)))


@pytest.mark.parametrize("name", SCHEDULES)
def test_threads_cover_every_row_once_with_their_launches_above(name):
    table = expand(SCHEDULES[name])
    owners: list[list[int]] = [[] for _ in range(table.num_rows)]
    for thread, (start, stop) in enumerate(zip(table.thread_start, table.thread_stop, strict=True)):
        for row in range(start, stop):
            owners[row].append(thread)
    for row, thread in enumerate(table.thread):
        assert owners[row][-1] == thread  # the lane, inside its queue
    lanes = np.flatnonzero(table.thread_launch >= 0)
    assert (table.kind[table.thread_launch[lanes]] == CommandKind.LAUNCH).all()


def one_rank(*queues, num_flags=4):
    buffers = (Buffer("x", 100), Buffer("y", 100))
    return Schedule("made", 1, (Program((0,), queues),), buffers, num_flags)


STEP = Kernel("step")


def test_a_submit_counts_what_stands_on_the_queue_and_not_what_is_inside_a_launch():
    launch = Launch(((STEP, STEP), Repeat(2, (STEP,))))
    table = expand(one_rank(Queue("stream0", (STEP, Repeat(2, (launch, STEP)), STEP))))
    on_queue = table.thread_lane[table.thread] < 0
    assert table.fed[on_queue].tolist() == [0, 1, 2, 3, 4, 5]
    assert (table.fed[~on_queue] == -1).all()


def test_forks_and_joins_of_a_call_are_fed_by_nobody():
    table = expand(CASES["calls"](2), [0])
    fed: dict[str, list[int]] = {}
    for place, number in zip((p for p, _ in commands_of(table)), table.fed, strict=True):
        fed.setdefault(place.queue, []).append(int(number))
    # A call, its fork, its only command, its join: twice.
    assert fed["stream0"] == [-1, -1, 0, -1, -1, -1, 1, -1]
    assert fed["copy0"] == [-1, -1, 0, 1, 2, 3, -1]


def test_loops_advance_offsets_counts_peers_and_flags():
    group = Group(4)
    place = Rel(1, (10, 2))
    body = (
        Copy(Slice(SELF, "x", place, 1), Slice(shifted(group, 1, 1), "x", place, 1)),
        Wait(Flag(SELF, Rel(0, (0, 1))), Rel(1, (1, 0))),
    )
    queue = Queue("copy0", (Repeat(2, (Repeat(3, body),)),))
    schedule = Schedule("loops", 4, (Program(range(4), (queue,)),), (Buffer("x", 100),), 3)
    commands: list[Any] = [command for _, command in schedule.commands([3])]
    copies, waits = commands[::2], commands[1::2]
    assert [c.src.offset for c in copies] == [1, 3, 5, 11, 13, 15]
    assert [c.dst.rank for c in copies] == [0, 0, 0, 1, 1, 1]
    assert [w.flag.index for w in waits] == [0, 1, 2, 0, 1, 2]
    assert [w.count for w in waits] == [1, 1, 1, 2, 2, 2]


def test_accesses_are_sources_then_destinations():
    reads = tuple(Slice(SELF, "x", k, 1) for k in range(3))
    kernel = Kernel("op", reads=reads, writes=(Slice(SELF, "y", 0, 1),))
    table = expand(one_rank(Queue("stream0", (STEP, kernel, STEP))))
    assert table.access_start.tolist() == [0, 0, 4, 4]
    assert table.access_mode.tolist() == [READ, READ, READ, WRITE]
    assert [table.buffers[b] for b in table.access_buffer] == ["x", "x", "x", "y"]


def test_a_command_is_named_by_queue_rank_lane_and_place():
    lanes = Launch(((STEP,), (STEP, STEP)))
    table = expand(one_rank(Queue("stream0", (STEP, lanes, STEP))))
    assert [table.where(row) for row in range(table.num_rows)] == [
        "stream0@0 #0 Kernel",
        "stream0@0 #1 Launch",
        "stream0@0 lane 0 #2 Kernel",
        "stream0@0 lane 1 #3 Kernel",
        "stream0@0 lane 1 #4 Kernel",
        "stream0@0 #5 Kernel",
    ]


def test_offsets_are_those_of_who_is_said_to_see():
    place = Rel(terms=(Term(Index(Group(4)), 10),))
    queue = Queue("copy0", (Copy(Slice(SELF, "x", place, 1), Slice(SELF, "x", 50, 1)),))
    schedule = Schedule("seen", 4, (Program(range(4), (queue,)),), (Buffer("x", 100),))
    table = expand(schedule, [0], seen_by=lambda runner, owner: runner + owner + 2)
    assert table.access_offset.tolist() == [20, 50]


def test_no_ranks_have_no_rows():
    table = expand(CASES["copy_engine"](2), ())
    assert table.num_rows == 0
    assert table.num_rows == len(list(commands_of(table)))


def test_a_buffer_that_was_not_declared_is_named():
    queue = Queue("copy0", (Copy(Slice(SELF, "x", 0, 1), Slice(SELF, "z", 0, 1)),))
    with pytest.raises(ScheduleError, match="buffer 'z'") as caught:
        expand(one_rank(queue))
    assert caught.value.hint == "Declared buffers: x, y."


def test_a_submit_may_name_a_queue_that_has_no_commands_yet():
    table = expand(one_rank(Queue("host", (Submit(SELF, "copy3", 1),))))
    assert [table.queues[q] for q in table.target_queue] == ["copy3"]


def test_what_is_too_large_to_write_out_is_refused():
    schedule = one_rank(Queue("stream0", (Repeat(10**15, (Signal(Flag(SELF, 0)),)),)))
    with pytest.raises(
        TooLargeError, match="1,000,000,000,000,000 commands, expected at most 30,000,000"
    ):
        expand(schedule)
    assert expand(schedule, ()).num_rows == 0
