"""Gradients in larger buckets: the same bytes in fewer collectives, nothing else changed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.planner.toy import group_of, kernel, moves, step_of
from weft.planner.buckets import with_buckets
from weft.step import Collective, Op, RankStep, StepGraph


def bucket(nbytes, *after, stream="comm", dtype="bf16", group="world", **more):
    what = Collective("all_reduce", nbytes, dtype, group)
    return moves(None, *after, what=what, stream=stream, **({"phase": "backward"} | more))


def ops_of(found):
    return found.graph.steps[0].ops


def sizes(found):
    return [op.collective.nbytes for op in ops_of(found) if op.collective is not None]


def test_every_so_many_buckets_become_one_where_the_last_of_them_was():
    ops = [kernel("g0", 1), bucket(1, 0), kernel("g1", 1), bucket(2, 2)]
    ops += [kernel("g2", 1), bucket(4, 4), kernel("end", 1, 1, 5)]
    found = with_buckets(step_of(*ops), 2)
    assert found is not None
    assert [op.name for op in ops_of(found)] == [
        "g0",
        "g1",
        "all_reduce",
        "g2",
        "all_reduce",
        "end",
    ]
    assert sizes(found) == [1 + 2, 4]
    assert found.nbytes == 4
    # The first waits for what made both, the end for where its parts went.
    assert [op.after for op in ops_of(found)] == [(), (), (0, 1), (), (3,), (2, 4)]
    assert found.origin == {(0, 0): (0,), (0, 1): (2,), (0, 2): (1, 3)} | {
        (0, 3): (4,),
        (0, 4): (5,),
        (0, 5): (6,),
    }


@pytest.mark.parametrize(
    ("times", "joined"), [(2, [3, 12, 16]), (3, [7, 24]), (4, [15, 16]), (8, [31])]
)
def test_as_many_are_joined_as_are_asked_for(times, joined):
    found = with_buckets(step_of(*(bucket(1 << k) for k in range(5))), times)
    assert found is not None
    assert sizes(found) == joined
    assert found.nbytes == max(joined)


@pytest.mark.parametrize(
    "other",
    [
        bucket(2, stream="other"),
        bucket(2, dtype="fp32"),
        bucket(2, phase="forward"),
        bucket(2, blocking=True),
        moves(None, what=Collective("all_gather", 2), phase="backward"),
        kernel("work", 1),
    ],
)
def test_only_like_buckets_are_joined(other):
    assert with_buckets(step_of(bucket(1), other), 2) is None


def test_buckets_of_other_groups_are_not_joined():
    assert with_buckets(step_of(bucket(1), bucket(2, group="half")), 2) is None


def test_buckets_are_joined_on_each_stream():
    ops = (bucket(1), bucket(10, stream="b"), bucket(2), bucket(20, stream="b"))
    found = with_buckets(step_of(*ops), 2)
    assert found is not None
    assert sizes(found) == [3, 30]


def test_a_bucket_that_something_before_the_next_waits_for_stays():
    ops = (bucket(1), kernel("uses it", 1, 0), bucket(2))
    assert with_buckets(step_of(*ops), 2) is None
    behind = (bucket(1), bucket(2), kernel("uses it", 1, 0))
    found = with_buckets(step_of(*behind), 2)
    assert found is not None
    assert [op.after for op in ops_of(found)] == [(), (0,)]


def test_the_next_bucket_may_wait_for_the_one_it_is_joined_with():
    found = with_buckets(step_of(bucket(1), bucket(2, 0)), 2)
    assert found is not None
    assert [op.after for op in ops_of(found)] == [()]


def test_the_largest_bucket_of_any_class_of_ranks_is_told():
    steps = (RankStep((0,), (bucket(1), bucket(2))), RankStep((1,), (bucket(4), bucket(8))))
    found = with_buckets(StepGraph("two", 2, steps), 2)
    assert found is not None
    assert found.nbytes == 12
    assert found.origin == {(0, 0): (0, 1), (1, 0): (0, 1)}


def test_other_all_reduces_are_no_buckets():
    large = bucket(1000, phase="forward")
    found = with_buckets(step_of(large, bucket(1), bucket(2)), 2)
    assert found is not None
    assert (sizes(found), found.nbytes) == ([1000, 3], 3)


def test_what_other_groups_reduce_meanwhile_is_in_no_bucket():
    inside = bucket(1000, group="tp")
    found = with_buckets(step_of(inside, bucket(1), kernel("needs it", 1, 0), bucket(2), inside), 2)
    assert found is not None
    assert (sizes(found), found.nbytes) == ([1000, 3, 1000], 3)
    assert found.groups == {"world"}
    for what, phase, has in ((bucket(1), "backward", True), (inside, "backward", False)):
        assert found.has(group_of(what=what.collective, phase=phase)) == has
    assert not found.has(group_of(what=bucket(1).collective, phase="forward"))


@st.composite
def backward(draw):
    """Kernels that wait for any op before them, buckets that wait for kernels."""
    ops: list[Op] = []
    for number in range(draw(st.integers(1, 10))):
        after = draw(st.lists(st.integers(0, number - 1), max_size=2)) if number else []
        if draw(st.booleans()):
            producers = [each for each in after if ops[each].kind == "kernel"]
            ops.append(bucket(draw(st.integers(1, 99)), *producers))
        else:
            ops.append(kernel(f"k{number}", 1, *after))
    return step_of(*ops)


def test_what_is_waited_for_stands_in_order():
    ops = [kernel(f"k{number}", 1) for number in range(9)]
    found = with_buckets(step_of(*ops, bucket(1, 8), bucket(2, 1)), 2)
    assert found is not None
    assert ops_of(found)[-1].after == (1, 8)


def test_empty_buckets_stay_empty():
    found = with_buckets(step_of(bucket(0), bucket(0)), 2)
    assert found is not None
    assert found.nbytes == 0


@given(backward(), st.sampled_from((2, 3, 4)))
def test_bytes_and_needs_are_kept(step, times):
    found = with_buckets(step, times)
    if found is None:
        return
    old, new = step.steps[0].ops, ops_of(found)
    assert sum(sizes(found)) == sum(op.collective.nbytes for op in old if op.collective)
    came = [found.origin[0, number] for number in range(len(new))]
    assert sorted(number for parts in came for number in parts) == list(range(len(old)))
    place = {number: at for at, parts in enumerate(came) for number in parts}
    for number, op in enumerate(old):
        assert {place[each] for each in op.after} <= set(new[place[number]].after)
    assert all(each < at for at, op in enumerate(new) for each in op.after)
