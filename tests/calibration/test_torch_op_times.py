"""Single ops are timed in groups and on both ranks, and all that was seen counts."""

from typing import Any, cast

import pytest

torch = pytest.importorskip("torch")

from weft.calibration.torch_op_calls import OpCall, TensorSpec  # noqa: E402
from weft.calibration.torch_op_times import (  # noqa: E402
    OpSequence,
    Repetition,
    groups,
    repeat_ops,
    typical,
)

pytestmark = pytest.mark.torch
SMALL = OpCall("aten::relu", (TensorSpec((4,), (1,), "float32"),))


def test_ops_take_what_both_ranks_take_in_the_mean():
    one, other = [Repetition(2.0, 1.0)] * 3, [Repetition(4.0, 3.0)] * 3
    (found,) = typical([[one], [other]])
    assert found == (3.0, 2.0, 0.0)


def test_the_middle_of_all_repetitions_counts_with_its_spread():
    mine = [Repetition(cold, 1.0) for cold in (2.0, 2.2, 1.9, 9.0, 1.8)]
    (found,) = typical([[mine]])
    assert found == pytest.approx((2.0, 1.0, 0.1))


def test_ops_are_cut_into_groups_whose_data_fit_into_memory():
    # 256 MiB, and a gradient of few of its rows.
    table = TensorSpec((1 << 20, 64), (64, 1), "float32")
    large = OpCall("aten::add_.Tensor", (table, TensorSpec((1 << 20, 64), (), "float32", rows=8)))
    assert [len(each) for each in groups([SMALL] * 30)] == [24, 6]
    assert [len(each) for each in groups([SMALL, large, large, SMALL])] == [1, 1, 1, 1]


class _Alone:
    """A world of one rank that counts how often it would have met the others."""

    met = 0

    def barrier(self):
        self.met += 1


def test_ranks_meet_before_every_op_and_each_is_timed_twice():
    world = _Alone()
    turns = OpSequence(cast("Any", world), [SMALL, SMALL]).repeated(3)
    assert [len(turn) for turn in turns] == [2, 2, 2]
    assert world.met == 6
    assert all(min(each) > 0 for turn in turns for each in turn)


@pytest.mark.multiprocess
def test_two_ranks_repeat_every_call():
    ranks = repeat_ops([SMALL] * 25, repeats=2)
    assert [[len(each) for each in mine] for mine in ranks] == [[2] * 25] * 2
