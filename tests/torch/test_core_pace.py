"""What was timed on a slow core does not count, or counts for less."""

import pytest

torch = pytest.importorskip("torch")

from weft.torch.core_pace import Pace, Probe, best_pace, calm, still_calm  # noqa: E402
from weft.torch.op_calls import Like, OpCall  # noqa: E402
from weft.torch.op_times import Repetition, groups, together, typical  # noqa: E402

pytestmark = pytest.mark.torch
BEST = Pace(1.0, 1.0)


def test_a_probe_times_products_and_sweeps():
    probe = Probe(1 << 16)
    assert probe.product() > 0
    assert probe.sweep() == probe.swept > 0


def test_the_slower_of_both_decides():
    assert Pace(1.2, 1.5).beside(BEST) == 1.5
    assert Pace(1.2, 1.0).beside(BEST) == 1.2


def test_the_best_pace_is_that_of_the_fastest_moments():
    found = best_pace([Pace(1.0 + 0.01 * n, 2.0) for n in range(101)])
    assert found == pytest.approx((1.05, 2.0))


def test_repetitions_on_slow_cores_are_left_out_unless_there_are_no_others():
    fast = [Repetition(2.0, 1.0, Pace(1.0, 1.05))] * 3
    slow = [Repetition(9.0, 9.0, Pace(1.0, 1.4)), Repetition(9.0, 9.0, Pace(1.5, 1.0))]
    assert calm([*slow, *fast], BEST) == fast
    assert calm([*slow, *slow], BEST) == [slow[0], slow[0]]


def test_ops_take_what_both_ranks_take_in_the_mean_on_cores_at_their_best():
    steady = [Repetition(2.0, 1.0, BEST)] * 3
    other = [Repetition(4.0, 3.0, BEST)] * 3
    (found,) = typical([[steady], [other]])
    assert found == (3.0, 2.0, 0.0)
    slowed = [*steady * 20, *[Repetition(2.8, 1.4, Pace(1.4, 1.0))] * 50]
    (found,) = typical([[slowed]])
    assert found[:2] == pytest.approx((2.0, 1.0))


def test_passes_are_put_together_by_rank_and_call():
    one, two = (Repetition(x, x, BEST) for x in (1.0, 2.0))
    assert together([[[[one]], [[two]]], [[[two]], [[one]]]]) == [[[one, two]], [[two, one]]]


def test_ops_are_cut_into_groups_whose_data_fit_into_memory():
    table = Like((1 << 20, 64), (64, 1), "float32")  # 256 MiB, and a gradient of few of its rows
    large = OpCall("aten::add_.Tensor", (table, Like((1 << 20, 64), (), "float32", rows=8)))
    small = OpCall("aten::relu", (Like((4,), (1,), "float32"),))
    assert [len(each) for each in groups([small] * 30)] == [24, 6]
    assert [len(each) for each in groups([small, large, large, small])] == [1, 1, 1, 1]


def test_of_many_that_were_slow_the_calmest_few_count():
    assert still_calm([1.0 + n / 10 for n in range(2, 22)]) == pytest.approx(1.6)  # five of twenty
    assert still_calm([2.0 + n / 100 for n in range(100)]) == pytest.approx(2.09)
    assert still_calm([1.0] * 3 + [3.0] * 97) == 3.0  # three are too few
