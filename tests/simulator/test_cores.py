"""Cores of one memory, by hand: 1 GB/s through the caches, half of that when two copy at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.paper import GB, MB, close, launch, made, move, queue, spans, without_costs
from weft.hardware import Cores, Level, Platform, WorkingSet
from weft.hardware.device import Reducing
from weft.schedule import Broadcast, Buffer, Encode, Reduce, Slice, Swap
from weft.simulator import simulate

MS = 1e-3
KIB, MIB = 1 << 10, 1 << 20


def rates(cached, both=0.5):
    """Past the caches twice as fast, sums four times: so that none is taken for another."""
    one = (cached * GB, 2 * cached * GB, 4 * cached * GB)
    alone, together = one, [rate * both for rate in one]
    return WorkingSet(
        cached=alone[0],
        cached_both=together[0],
        streamed=alone[1],
        streamed_both=together[1],
        reduced=alone[2],
        reduced_both=together[2],
    )


FLAT = {"1KiB": rates(1)}  # whatever is in use
DTYPES = {"float32": Reducing(4 * GB), "float64": Reducing(2 * GB), "int8": Reducing(8 * GB)}


def cores(*sizes, sets=FLAT, streamed_from=1 << 40, reduces=DTYPES, node_levels=1):
    """Nodes of so many cores; links hold nobody up."""
    shared = Cores(streamed_from, 1 * GB, 0.0, sets, reduces)
    device = replace(without_costs(), units=1, shared=shared)
    levels = tuple(Level("switch", size, 1e6 * GB) for size in sizes or (4,))
    return Platform("cores", device=device, levels=levels, node_levels=node_levels)


def x(rank, nbytes=1 * MB, offset=0):
    return Slice(rank, "x", offset, nbytes)


def y(rank, nbytes=1 * MB, offset=0):
    return Slice(rank, "y", offset, nbytes)


def core(*commands):
    """One core works through commands."""
    return (queue("stream0", launch(commands, units=1)),)


def seconds(ranks, on=None):
    on = on or cores()
    return simulate(made(on.num_ranks, ranks), on).seconds


# Milliseconds for commands of a MB: copies at 1 GB/s, sums of two at 4.
TAKEN = {
    "a copy": (move(0, 1, MB), 1),
    "a copy inside": (move(0, 0, MB), 1),
    "a broadcast to two is two copies": (Broadcast(x(0), (y(1), y(2))), 2),
    "a broadcast to three": (Broadcast(x(0), (y(1), y(2), y(3))), 3),
    "a swap makes four passes where two copies make six": (Swap(x(0), y(1)), 4 / 3),
    "a sum of two": (Reduce((x(0), x(1)), y(0), "float32"), 1 / 4),
    "a sum of five reads and writes twice as much": (
        Reduce(tuple(x(r) for r in (0, 1, 2, 3, 0)), y(0), "float32"),
        2 / 4,
    ),
    "a sum at half the rate": (Reduce((x(0), x(1)), y(0), "float64"), 2 / 4),
    "a sum at twice the rate": (Reduce((x(0), x(1)), y(0), "int8"), 1 / 8),
    "a sum of what nobody measured": (Reduce((x(0), x(1)), y(0), "bf16"), 1 / 4),
    "an encoding without a codec": (Encode(x(0), y(0), "none", "uint8"), 1),
}


@pytest.mark.parametrize(("command", "milliseconds"), TAKEN.values(), ids=TAKEN)
def test_a_core_alone_takes_for_each_command(command, milliseconds):
    assert seconds({0: core(command)}) == close(milliseconds * MS)


@pytest.mark.parametrize(("command", "milliseconds"), TAKEN.values(), ids=TAKEN)
def test_an_engine_of_such_a_machine_is_a_core_too(command, milliseconds):
    assert seconds({0: (queue("copy0", command),)}) == close(milliseconds * MS)


def test_sums_of_all_dtypes_are_alike_where_float32_was_not_measured():
    add = Reduce((x(0), x(1)), y(0), "float64")
    on = cores(reduces={"float64": Reducing(2 * GB)})
    assert seconds({0: core(add)}, on) == close(MS / 4)


@pytest.mark.parametrize("working", [1, 2, 3, 4])
@pytest.mark.parametrize("both", [0.5, 0.75, 1.0])
def test_cores_at_once_share_what_two_of_them_achieve(working, both):
    """One copies at 1 GB/s, n of them at twice ``both`` in all."""
    on = cores(sets={"1KiB": rates(1, both)})
    found = seconds({r: core(move(r, r, MB)) for r in range(working)}, on)
    assert found == close(max(1, working / (2 * both)) * MS)


def test_a_core_that_is_left_alone_goes_on_at_its_own_rate():
    """Two at half the rate until the shorter is done."""
    sizes = {0: 1 * MB, 1: 3 * MB}
    work = {rank: core(move(rank, rank, size)) for rank, size in sizes.items()}
    found = spans(made(4, work), cores())
    assert found[0, "stream0", 0][1] == close(2 * MS)
    assert found[1, "stream0", 0][1] == close(2 * MS + 2 * MS)


def test_each_node_has_a_memory_of_its_own():
    on = cores(2, 2)
    apart = {rank: core(move(rank, rank, MB)) for rank in (0, 2)}
    together = {rank: core(move(rank, rank, MB)) for rank in (2, 3)}
    assert seconds(apart, on) == close(1 * MS)
    assert seconds(together, on) == close(2 * MS)


def test_levels_inside_a_node_share_one_memory():
    on = cores(2, 2, node_levels=2)
    apart = {rank: core(move(rank, rank, MB)) for rank in (0, 2)}
    assert seconds(apart, on) == close(2 * MS)


@pytest.mark.parametrize(("nbytes", "rate"), [(1 * MB - 1, 1), (1 * MB, 2), (2 * MB, 2)])
def test_copies_from_some_size_on_go_past_the_caches(nbytes, rate):
    on = cores(streamed_from=1 * MB)
    assert seconds({0: core(move(0, 1, nbytes))}, on) == close(nbytes / (rate * GB))


@pytest.mark.parametrize(
    ("command", "milliseconds"),
    [
        (Broadcast(x(0, 8 * MB), (y(1, 8 * MB),)), 8),
        (Swap(x(0, 6 * MB), y(1, 6 * MB)), 8),
        (Reduce((x(0, 8 * MB), x(1, 8 * MB)), y(0, 8 * MB), "float32"), 2),
        (Encode(x(0, 8 * MB), y(0, 8 * MB), "none", "uint8"), 4),
    ],
)
def test_only_copies_and_codecs_go_past_the_caches(command, milliseconds):
    assert seconds({0: core(command)}, cores(streamed_from=1 * MB)) == close(milliseconds * MS)


# A hundred times as fast where a KiB is in use as where a TiB is.
STEEP = {"1TiB": rates(1), "1KiB": rates(100)}


def with_buffers(*buffers):
    sends = made(2, {rank: core(move(rank, rank, KIB)) for rank in (0, 1)})
    return replace(sends, buffers=buffers)


@pytest.mark.parametrize(
    ("in_use", "rate"),
    [(1, 100), (KIB, 100), (1 << 25, 10), (1 << 40, 1), (1 << 45, 1)],
)
def test_the_rate_lies_on_a_straight_line_between_logarithms(in_use, rate):
    """Half way from 2^10 to 2^40 lies 2^25, half way from 100 to 1 lies 10; beyond is as there."""
    on = cores(2, sets={name: replace(each) for name, each in STEEP.items()})
    schedule = with_buffers(Buffer("x", in_use), Buffer("y", 0))
    # Both copy, each at half of its rate.
    assert simulate(schedule, on).seconds == close(KIB / (rate * GB) * 2)


def test_in_use_are_all_buffers_of_the_rank_that_has_most():
    schedule = with_buffers(Buffer("x", (1 << 10, 1 << 24)), Buffer("y", (1 << 5, 1 << 24)))
    assert simulate(schedule, cores(2, sets=STEEP)).seconds == close(KIB / (10 * GB) * 2)


def lane(*commands):
    """The milliseconds that each command takes where all else is a TiB, at 1 GB/s."""
    work = {0: core(*commands)}
    found = spans(made(2, work), cores(2, sets=STEEP))
    return [found[0, "stream0", n + 1][1] - found[0, "stream0", n + 1][0] for n in range(2)]


COLD, WARM = close(512 / GB), close(512 / (100 * GB))  # 512 bytes and as many: a KiB


def test_what_the_row_before_touched_is_still_near():
    assert lane(move(0, 1, 512), move(0, 1, 512)) == [COLD, WARM]


def test_part_of_what_the_row_before_touched_is_near():
    add = Reduce((x(0, 512), x(1, 512)), y(0, 512), "float32")
    back = Broadcast(y(0, 512), (x(1, 512),))
    assert lane(add, back)[1] == WARM


def test_what_was_touched_on_another_rank_at_another_place_or_in_another_size_is_not_near():
    first = move(0, 1, 512)
    for second in (
        move(1, 0, 512),
        move(0, 1, 511),
        Broadcast(x(0, 512), (y(1, 512, offset=1),)),
        Broadcast(x(0, 512), (x(1, 512),)),
        Reduce((x(0, 512), x(1, 512)), y(1, 512), "float32"),
    ):
        assert lane(first, second)[1] != WARM
    assert lane(first, Broadcast(x(0, 512), (y(1, 512),)))[1] == WARM


def test_only_the_row_just_before_counts_and_only_in_its_own_thread():
    same, other = move(0, 1, 512), move(1, 0, 512)
    found = spans(made(2, {0: core(same, other, same)}), cores(2, sets=STEEP))
    assert found[0, "stream0", 3][1] - found[0, "stream0", 3][0] == COLD
    lanes = (queue("stream0", launch((same,), (same,), units=1)),)
    both = spans(made(2, {0: lanes}), cores(2, sets=STEEP))
    assert both[0, "stream0", 0][1] == close(2 * 512 / GB)


def test_caches_hold_a_mebibyte():
    half = MIB // 2
    # A third of the way from 2^10 to 2^40.
    assert lane(move(0, 1, half), move(0, 1, half))[1] == close(half / (100 ** (2 / 3) * GB))
    more = half + 1
    assert lane(move(0, 1, more), move(0, 1, more))[1] == close(more / GB)


@settings(max_examples=30, derandomize=True)
@given(working=st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_cores_that_together_are_no_faster_than_one_take_the_sum_of_their_times(working):
    """Whichever ranks copy at once, the memory gives 1 GB/s to the end."""
    work = {rank: core(move(rank, rank, size * MB)) for rank, size in enumerate(working)}
    assert seconds(work) == close(sum(working) * MS)
