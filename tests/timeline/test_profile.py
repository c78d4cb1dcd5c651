"""Two steps compared: where the time went, what changed, and that equal steps are equal."""

import pytest

from weft.timeline.step_diff import diff
from weft.timeline.step_profile import OpSpan, StepProfile, by_start


def profile(*ops, seconds=None, label="step"):
    spans = by_start(
        OpSpan(name, kind, stream, start, end) for name, kind, stream, start, end in ops
    )
    last = max((op.end for op in spans), default=0.0)
    return StepProfile(label, "predicted", seconds or last, spans)


MM = ("mm", "compute", "s0", 0.0, 4.0)
GATHER = ("gather", "communication", "s1", 2.0, 7.0)
ADD = ("add", "compute", "s0", 7.0, 8.0)


def test_totals_say_where_the_time_of_a_step_goes():
    found = profile(MM, GATHER, ADD, seconds=10.0).totals
    assert found == pytest.approx(
        {"step": 10, "compute": 5, "communication": 5, "exposed": 3, "idle": 2}
    )


def test_the_exposed_part_of_an_op_is_what_no_kernel_covers():
    assert profile(MM, GATHER, ADD).exposed == pytest.approx((0, 3, 0))


def test_equal_steps_do_not_differ():
    found = diff(profile(MM, GATHER, ADD), profile(MM, GATHER, ADD))
    assert all(change.difference == 0 for change in found.changes)
    assert found.matched == 1


def test_what_changed_most_comes_first_with_what_became_exposed():
    longer = ("gather", "communication", "s1", 2.0, 9.0)
    found = diff(profile(MM, GATHER, ADD), profile(MM, longer, ("add", "compute", "s0", 9.0, 10.5)))
    first, second, *_ = found.changes
    assert (first.name, first.difference, first.exposed) == ("gather", 2.0, (3.0, 5.0))
    assert (second.name, second.difference) == ("add", 0.5)


def test_ops_of_one_step_alone_are_named():
    found = diff(profile(MM), profile(MM, GATHER))
    (gather,) = [change for change in found.changes if change.name == "gather"]
    assert gather.count == (0.0, 1.0)
    assert found.matched == pytest.approx(2 / 3)


def test_a_step_without_ops_has_no_totals_but_idle_time():
    assert profile(seconds=2.0).totals["idle"] == 2.0
