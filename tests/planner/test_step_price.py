"""The seconds of a whole step, in whole seconds, with collectives carried out in other ways."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.toy import kernel, moves, pair_of, pricer_of, step_of, way
from weft.workload import Op, Step, Workload

# A collective of 4 s beside a kernel of 10 s; another kernel waits for both.
BESIDE = step_of(kernel("long", 10), moves(4), kernel("last", 1, 1))
# A kernel, a collective of what it made, and a kernel that waits for that.
CHAIN = step_of(kernel("maker", 8), moves(10, 0), kernel("last", 1, 1))


def seconds(step, *ways):
    return pricer_of(step).seconds(ways)


def test_a_step_without_ways_takes_what_its_ops_take():
    assert seconds(BESIDE) == pytest.approx(11)
    assert seconds(CHAIN) == pytest.approx(19)


def test_the_slowest_ranks_decide():
    steps = (Step((0,), (kernel("short", 1),)), Step((1,), (kernel("long", 5),)))
    assert pricer_of(Workload("two", 2, steps)).seconds(()) == pytest.approx(5)


@pytest.mark.parametrize(
    ("tried", "expected"),
    [
        (way(4), 11),
        (way(12), 13),  # not hidden any more
        (way(4, serial=True), 10 + 4 + 1),
        (way(4, serial=True, beside=2.0, compute=2.0), 10 + 4 + 1),  # nothing is beside it
        # Slowed for the whole of its time, in which the kernel does a half: 4 s for 2.
        (way(4, compute=2.0), 10 + 2 + 1),
        (way(4, compute=4.0), 10 + 3 + 1),
        (way(4, beside=2.0), 11),  # 8 s, still hidden
        (way(4, beside=2.0, compute=2.0), 10 + 4 + 1),  # and beside the kernel for twice as long
    ],
)
def test_a_way_changes_its_collective_and_what_runs_beside_it(tried, expected):
    assert seconds(BESIDE, (pair_of(1), tried)) == pytest.approx(expected)


def test_a_collective_is_slowed_by_the_share_of_it_that_kernels_run_beside():
    half = step_of(moves(10), kernel("short", 5), kernel("last", 1, 0))
    # 5 of 10 s: 12 s with a factor of 1.4. Then 5 of 12: 11.67 s.
    expected = 10 * (1 + 5 / 12 * 0.4) + 1
    assert seconds(half, (pair_of(0), way(10, beside=1.4))) == pytest.approx(expected)


def test_where_the_pair_was_priced_its_product_ends_with_it():
    step = step_of(kernel("small", 0.5), moves(4), kernel("product", 10), kernel("last", 1, 1))
    assert seconds(step, (pair_of(1), way(4, pair=12.0))) == pytest.approx(0.5 + 12 + 1)
    # The collective takes no longer than the pair.
    walker = pricer_of(step).walk([(pair_of(1), way(9, pair=6.0))])[0]
    assert walker.ends[1] == pytest.approx(6)


def test_where_nothing_ran_beside_a_priced_pair_it_is_a_collective_alone():
    assert seconds(CHAIN, (pair_of(1), way(3, pair=7.0))) == pytest.approx(8 + 3 + 1)


def test_slices_leave_inside_their_maker():
    pair = pair_of(1, makers=((0, 0),), making=8.0)
    # Of four slices three leave meanwhile: 8 s less a quarter are hidden.
    assert seconds(CHAIN, (pair, way(10, slices=4))) == pytest.approx(8 + 4 + 1)
    slower = way(10, slices=4, producer=1.5)
    assert seconds(CHAIN, (pair, slower)) == pytest.approx(12 + 4 + 1)
    short = way(4, slices=4)  # no more is hidden than there is
    assert seconds(CHAIN, (pair, short)) == pytest.approx(8 + 1 + 1)


def test_without_makers_there_are_no_slices():
    assert seconds(CHAIN, (pair_of(1, making=8.0), way(10, slices=4))) == pytest.approx(19)


def test_ops_that_fall_away_take_no_time():
    assert seconds(CHAIN, (pair_of(1), way(10, freed=((0, 0),)))) == pytest.approx(11)


def test_all_members_of_a_pair_change():
    twice = step_of(moves(4), kernel("a", 1, 0), moves(4, 1), kernel("b", 1, 2))
    assert seconds(twice, (pair_of(0, 2), way(2))) == pytest.approx(6)
    assert seconds(twice, (pair_of(0), way(2)), (pair_of(2), way(1))) == pytest.approx(5)


def test_ways_that_slow_nothing_leave_what_others_slow():
    ops = (kernel("long", 10), moves(4), kernel("last", 1, 1), moves(1, 2), kernel("end", 1, 3))
    slows, plain = (pair_of(1), way(4, compute=2.0)), (pair_of(3), way(1))
    assert seconds(step_of(*ops), slows, plain) == pytest.approx(10 + 2 + 1 + 1 + 1)


def test_collectives_keep_their_order_when_one_goes_to_the_stream_of_the_kernels():
    # Three in a row on one stream; kernels issued between them.
    ops = (moves(2), kernel("a", 1), moves(2), kernel("b", 1), moves(2), kernel("c", 1, 4))
    pricer = pricer_of(step_of(*ops))
    walker = pricer.walk([(pair_of(2), way(2, serial=True))])[0]
    begins = [walker.starts[n][1] for n in (0, 2, 4)]
    ends = [walker.ends[n] for n in (0, 2, 4)]
    assert begins[1] >= ends[0]
    assert begins[2] >= ends[1]
    # a ends at 1, the collective waits for the first until 2, b follows it at 4.
    assert (begins[1], walker.starts[3][1]) == pytest.approx((2, 4))


def test_the_stream_of_the_kernels_is_the_one_with_most_of_them():
    ops = (kernel("side", 9, stream="side"), kernel("a", 1), kernel("b", 1), moves(4))
    # Serial means behind a and b, on their stream.
    walker = pricer_of(step_of(*ops)).walk([(pair_of(3), way(4, serial=True))])[0]
    assert walker.starts[3][1] == pytest.approx(2)


def test_overlap_says_how_long_each_kernel_ran_beside_each_collective():
    ops = (
        kernel("before", 2),
        kernel("a", 3),
        moves(6, 0),
        kernel("b", 2),
        kernel("c", 4),
        kernel("behind", 5),
        moves(2, 5),
    )
    pricer = pricer_of(step_of(*ops))
    overlap = pricer.overlap(pricer.walk(()))
    assert overlap.beside[0, 2] == pytest.approx({1: 3, 3: 2, 4: 1})
    assert overlap.share == pytest.approx({(0, 2): 1.0, (0, 6): 0.0})


def test_what_runs_on_the_stream_of_the_kernels_overlaps_nothing():
    pricer = pricer_of(step_of(kernel("a", 3), moves(2, stream="compute"), kernel("b", 1)))
    assert pricer.overlap(pricer.walk(())).share == {}


def test_kernels_of_other_streams_and_other_collectives_are_not_what_runs_beside():
    ops = (
        kernel("aside", 3, stream="side"),
        kernel("a", 1),
        moves(1, stream="compute"),
        kernel("b", 2),
        moves(8),
    )
    pricer = pricer_of(step_of(*ops))
    overlap = pricer.overlap(pricer.walk(()))
    assert overlap.beside[0, 4] == pytest.approx({1: 1, 3: 2})
    assert overlap.share[0, 4] == pytest.approx(3 / 8)


def test_shares_are_the_same_in_milliseconds():
    pricer = pricer_of(step_of(kernel("a", 1e-3), moves(4e-3)))
    assert pricer.overlap(pricer.walk(())).share[0, 1] == pytest.approx(1 / 4)


def test_what_the_host_does_is_no_kernel():
    ops = (Op("think", "host", seconds=3.0), kernel("a", 4), moves(4))
    pricer = pricer_of(step_of(*ops))
    assert set(pricer.own) == {(0, 1), (0, 2)}
    assert pricer.seconds(()) == pytest.approx(3 + 4)
    assert pricer.seconds([(pair_of(2), way(5))]) == pytest.approx(3 + 5)


@st.composite
def small_steps(draw):
    """Collectives on one of two streams, and kernels, in whole seconds."""
    ops, places = [], []
    for number in range(draw(st.integers(1, 7))):
        after = draw(st.lists(st.integers(0, number - 1), max_size=2)) if number else []
        took = draw(st.integers(1, 9))
        if number == 0 or draw(st.booleans()):
            places.append(number)
            ops.append(moves(took, *after, stream=draw(st.sampled_from(("one", "two")))))
        else:
            ops.append(kernel(f"k{number}", took, *after))
    return step_of(*ops), places


@given(small_steps(), st.integers(1, 9), st.integers(0, 4))
def test_a_quicker_collective_never_makes_a_step_longer(drawn, took, more):
    step, places = drawn
    pricer, pair = pricer_of(step), pair_of(*places)
    assert pricer.seconds([(pair, way(took))]) <= pricer.seconds([(pair, way(took + more))]) + 1e-9


@given(small_steps())
def test_a_step_takes_no_less_than_its_busiest_stream_and_no_more_than_all_in_turn(drawn):
    step, places = drawn
    ops = step.steps[0].ops
    took = pricer_of(step).seconds(())
    streams = {op.stream for op in ops}
    busiest = max(sum(op.seconds for op in ops if op.stream == each) for each in streams)
    assert busiest - 1e-6 <= took <= sum(op.seconds for op in ops) + 1e-6
    serial = [(pair_of(n), way(ops[n].seconds, serial=True)) for n in places]
    in_turn = pricer_of(step).seconds(serial)
    assert took <= in_turn + 1e-6
