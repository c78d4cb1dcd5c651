"""Relative values: the same for one rank and for many at once, alone and inside another group."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.schedule import SELF, Group, Index, Peer, Rel, Term, flipped, shifted
from weft.schedule.values import bind_rank, bind_value, plus, value_at

NUM_RANKS = 24
small = st.integers(-30, 30)
groups = st.sampled_from(
    [
        Group(24),
        Group(8),
        Group(3, 8),
        Group(2, 4),
        Group(4, 2),
        Group(1),
        Group(24, 1, (*range(5, 29),)),
    ]
)
advances = st.lists(small, max_size=3).map(tuple)
indices = st.builds(Index, groups, small, advances)
terms = st.builds(Term, indices, small) | st.builds(
    lambda index, square: Term(index, 1, tuple(range(index.group.size ** (1 + square)))),
    indices,
    st.booleans(),
)
rels = st.builds(Rel, small, advances, st.lists(terms, max_size=3).map(tuple))
peers = st.builds(Peer, indices) | st.builds(
    lambda index: Peer(index, tuple(reversed(range(index.group.size)))), indices
)


def ranks_of(value):
    """The ranks that may ask: on a list only the listed ones."""
    listed = [t.index.group.ranks for t in getattr(value, "terms", ())]
    listed += [value.index.group.ranks] if isinstance(value, Peer) else []
    return range(5, 24) if any(listed) else range(NUM_RANKS)


@given(rels | peers | small, st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_one_at_a_time_and_all_at_once_agree(value, counters):
    ranks = ranks_of(value)
    arrays = [np.full(len(ranks), c) for c in counters]
    together = np.broadcast_to(value_at(value, np.asarray(ranks), arrays), len(ranks))
    assert together.tolist() == [int(value_at(value, rank, counters)) for rank in ranks]


@given(peers)
def test_a_peer_stands_in_my_group(peer):
    for rank in ranks_of(peer):
        other = int(peer.at(rank))
        group = peer.index.group
        everyone = [int(group.member(rank, position)) for position in range(group.size)]
        assert other in everyone
        assert everyone[int(group.position(rank))] == rank


def test_a_group_is_ranks_that_stand_a_stride_apart():
    node, across = Group(8), Group(3, 8)
    assert [node.position(r) for r in (0, 7, 8, 23)] == [0, 7, 0, 7]
    assert [across.position(r) for r in (0, 7, 8, 23)] == [0, 0, 1, 2]
    assert [across.member(13, position) for position in range(3)] == [5, 13, 21]


def test_a_group_may_be_a_list_of_ranks():
    pairs = Group(2, 1, (7, 3, 5, 1))
    assert [int(pairs.position(r)) for r in (7, 3, 5, 1)] == [0, 1, 0, 1]
    assert int(pairs.member(5, 1)) == 1


def test_shifts_wrap_around_and_advance_with_the_loops():
    assert [shifted(Group(4), -1).at(rank) for rank in range(4)] == [3, 0, 1, 2]
    assert [shifted(Group(4), 1, 1).at(2, (k,)) for k in range(3)] == [3, 0, 1]
    assert [shifted(Group(4), 0, 2, 1).at(0, (1, k)) for k in range(3)] == [2, 3, 0]


def test_bits_are_flipped_and_masked():
    assert [flipped(Group(8), 5).at(rank) for rank in (0, 1, 7)] == [5, 4, 2]
    assert [Index(Group(8), 4, xor=True, mask=6).at(rank) for rank in (0, 3, 7)] == [4, 6, 2]


def test_a_table_is_looked_up_by_index_or_by_position_and_index():
    column = Term(Index(Group(3), 1), table=(10, 20, 30))
    square = Term(Index(Group(3), 1), table=tuple(range(9)))
    assert [column.at(rank) for rank in range(3)] == [20, 30, 10]
    assert [square.at(rank) for rank in range(3)] == [1, 5, 6]


@pytest.mark.parametrize(
    ("term", "varies"),
    [
        (Term(Index(Group(3)), 0), False),
        (Term(Index(Group(3)), 2), True),
        (Term(Index(Group(3)), table=(5, 5, 5)), False),
        (Term(Index(Group(3)), table=(5, 6, 5)), True),
    ],
)
def test_a_term_says_whether_ranks_can_see_different_values(term, varies):
    assert term.varies is varies


@given(small | rels, small | rels, st.lists(st.integers(0, 5), min_size=3, max_size=3))
def test_a_sum_is_the_sum_at_every_rank(left, right, counters):
    for rank in range(5, 24):
        each = value_at(left, rank, counters) + value_at(right, rank, counters)
        assert value_at(plus(left, right), rank, counters) == each


INNER = [Group(6), Group(3), Group(2, 3), Group(1)]
OUTER = [
    *(Group(6), Group(6, 4), Group(6, 1, (3, 1, 4, 15, 9, 2))),
    *(Group(6, 2, tuple(range(23, -1, -1))), Group(6, 1, tuple(range(4, 16)))),
]


@pytest.mark.parametrize("outer", OUTER, ids=str)
@pytest.mark.parametrize("inner", INNER, ids=str)
@given(shift=small)
def test_a_bound_value_is_that_of_the_position(inner, outer, shift):
    peer = shifted(inner, shift)
    value = Rel(shift, (), (Term(Index(inner, shift), 7),))
    for rank in outer.ranks or range(24):
        position = int(outer.position(rank))
        there = int(outer.member(rank, peer.at(position)))
        assert int(value_at(bind_rank(peer, outer), rank)) == there
        assert int(value_at(bind_value(value, outer), rank)) == value.at(position)
        assert int(value_at(bind_rank(4, outer), rank)) == int(outer.member(rank, 4))
    assert bind_value(5, outer) == 5


def test_groups_nest_by_multiplying_strides():
    assert Group(2, 3).within(Group(6, 4)) == Group(2, 12)
    assert Group(2, 3).within(OUTER[2]) == Group(2, 3, OUTER[2].ranks)


def test_a_group_on_a_list_is_bound_once():
    with pytest.raises(AssertionError, match="cannot be bound again"):
        OUTER[2].within(Group(2))


@given(st.integers(0, 1 << 40))
def test_self_is_the_rank_that_asks(rank):
    assert SELF.at(rank) == rank
