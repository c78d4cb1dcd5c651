"""Which ranks are alike, in cases whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.collectives import collective
from weft.schedule import (
    SELF,
    Buffer,
    Copy,
    Flag,
    Group,
    Index,
    Peer,
    Program,
    Queue,
    Rel,
    Schedule,
    Signal,
    Slice,
    Term,
    Wait,
    shifted,
)
from weft.schedule.rank_symmetry import (
    BOTH,
    FLIP,
    NEITHER,
    ROTATE,
    Symmetry,
    commutes,
    find_symmetry,
    natural_dims,
)

ONLY_ROTATE = frozenset((ROTATE,))


def found(schedule, dims=None, allowed=None):
    dims = dims or natural_dims(schedule)
    return find_symmetry(schedule, dims, allowed or [BOTH] * len(dims))


@pytest.mark.parametrize(
    ("kind", "algorithm", "num_ranks", "dims", "actions"),
    [
        ("all_reduce", "ring", 6, (6,), (ROTATE,)),
        ("all_to_all", "direct", 6, (6,), (ROTATE,)),
        ("all_gather", "halving-doubling", 8, (8,), (FLIP,)),
        ("all_reduce", "hierarchical", 8, (2, 4), (ROTATE, FLIP)),
        ("all_gather", "hierarchical", 6, (2, 3), (ROTATE, ROTATE)),
        ("barrier", "direct", 5, (5,), (ROTATE,)),
        ("broadcast", "direct", 6, (6,), (None,)),
        ("broadcast", "chain", 6, (6,), (None,)),
        ("gather", "direct", 6, (6,), (None,)),
        ("all_reduce", "tree", 6, (6,), (None,)),
        ("all_gather", "dma", 4, (4,), (None,)),
    ],
)
def test_collectives_collapse_as_far_as_they_are_alike(kind, algorithm, num_ranks, dims, actions):
    node_size = 2 if algorithm == "hierarchical" else None
    made = collective(kind, algorithm, num_ranks=num_ranks, nbytes=48, node_size=node_size)
    assert found(made) == Symmetry(dims, actions)


def test_uneven_chunks_make_ranks_different():
    made = collective("all_reduce", "ring", num_ranks=4, nbytes=45)
    assert found(made).represents == 1


def test_hardware_may_forbid_what_the_schedule_allows():
    rotating = collective("all_reduce", "ring", num_ranks=8, nbytes=48)
    flipping = collective("all_gather", "halving-doubling", num_ranks=8, nbytes=48)
    assert found(rotating, (8,), [NEITHER]).actions == (None,)
    assert found(flipping, (8,), [ONLY_ROTATE]).actions == (None,)
    assert found(flipping, (2, 4), [ONLY_ROTATE, BOTH]).actions == (None, FLIP)


def test_a_flat_ring_turns_as_a_whole_only():
    ring = collective("all_reduce", "ring", num_ranks=8, nbytes=48)
    assert found(ring, (2, 4)).actions == (None, ROTATE)


def one_program(*commands, ranks=range(4), num_ranks=4):
    queue = Queue("copy0", commands)
    return Schedule("made", num_ranks, (Program(ranks, (queue,)),), (Buffer("x", 16),), 4)


G = Group(4)
VARYING = Rel(0, (), (Term(Index(G), 1),))
LISTED = Rel(0, (), (Term(Index(Group(2, 1, (3, 1, 2, 0)))),))
LEADER = Peer(Index(G, xor=True, mask=2))


@pytest.mark.parametrize(
    "schedule",
    [
        one_program(Signal(Flag(0, 0))),
        one_program(Signal(Flag(Peer(Index(G), (1, 0, 3, 2)), 0))),
        one_program(Signal(Flag(SELF, VARYING))),
        one_program(Signal(Flag(shifted(Group(2, 2), 1), LISTED))),
        one_program(Signal(Flag(LEADER, 0))),
        one_program(Wait(Flag(SELF, 0), VARYING)),
        one_program(Copy(Slice(SELF, "x", 0, VARYING), Slice(SELF, "x", 8, VARYING))),
        one_program(Signal(Flag(shifted(G, 1), 0)), ranks=(0, 1, 2)),
        one_program(num_ranks=1, ranks=(0,)),
    ],
    ids=["root", "table", "flag", "listed", "leader", "count", "size", "some", "alone"],
)  # fmt: skip
def test_what_depends_on_the_rank_itself_does_not_collapse(schedule):
    assert found(schedule).represents == 1


def test_groups_that_do_not_nest_have_one_coordinate():
    made = one_program(
        Signal(Flag(shifted(Group(2), 1), 0)),
        Signal(Flag(shifted(Group(3), 1), 0)),
        ranks=range(6),
        num_ranks=6,
    )
    assert natural_dims(made) == (6,)


def test_a_group_that_does_not_divide_a_coordinate_depends_on_it():
    flag = Rel(0, (), (Term(Index(Group(2))),))
    made = one_program(Signal(Flag(shifted(Group(3), 1), flag)), ranks=range(6), num_ranks=6)
    assert found(made, (3, 2)).represents == 1


SYMMETRY = Symmetry((3, 4, 2), (ROTATE, FLIP, None))


def test_a_representative_has_zeros_where_ranks_are_alike():
    assert SYMMETRY.represents == 12
    assert SYMMETRY.strides == (1, 3, 12)
    assert SYMMETRY.representatives().tolist() == [0, 12]
    assert SYMMETRY.representative(np.array([5, 11, 23])).tolist() == [0, 0, 12]


@pytest.mark.parametrize("runner", range(0, 24, 5))
def test_moving_the_owner_home_moves_the_runner_by_as_much(runner):
    for owner in range(24):
        seen = SYMMETRY.seen_by(SYMMETRY.representative(runner), owner)
        # Rotating and flipping the owner's coordinates to zero, by hand.
        home = SYMMETRY.representative(runner)
        turned = (home % 3 - owner % 3) % 3
        flipped = (home // 3 % 4) ^ (owner // 3 % 4)
        assert seen == turned + 3 * flipped + home // 12 * 12


@st.composite
def peers_and_moves(draw):
    """Draw a way of taking a peer, and a way of moving ranks along one coordinate."""
    dims = tuple(draw(st.lists(st.sampled_from((2, 3, 4)), min_size=1, max_size=3)))
    low = draw(st.integers(0, len(dims) - 1))
    high = draw(st.integers(low + 1, len(dims)))
    group = Group(math.prod(dims[low:high]), math.prod(dims[:low]))
    if draw(st.booleans()):  # one that need not fit the coordinates
        group = Group(draw(st.integers(1, 8)), draw(st.integers(1, 4)))
    near = st.integers(-1, group.size)  # from just outside the group to just outside
    advance = tuple(draw(st.lists(near, max_size=2)))
    index = Index(group, draw(near), advance, xor=draw(st.booleans()))
    moved = draw(st.integers(0, len(dims) - 1))
    ways = (ROTATE, FLIP) if dims[moved] != 3 else (ROTATE,)
    actions = [None] * len(dims)
    actions[moved] = draw(st.sampled_from(ways))
    return index, Symmetry(dims, tuple(actions))


def moves(symmetry, rank):
    """Where a rank comes to stand by every move."""
    for dim, stride, action in zip(symmetry.dims, symmetry.strides, symmetry.actions, strict=True):
        at = rank // stride % dim
        for by in range(dim) if action else ():
            to = (at + by) % dim if action == ROTATE else at ^ by
            yield rank + (to - at) * stride


@given(peers_and_moves())
def test_where_a_peer_is_said_to_move_along_it_does(drawn):
    index, symmetry = drawn
    if not commutes(index, symmetry):
        return
    peer = Peer(index)
    for rank in range(math.prod(symmetry.dims)):
        for counter in range(3):
            counters = (counter, 2 * counter)[: len(index.advance)]
            there = list(moves(symmetry, peer.at(rank, counters)))
            assert [peer.at(to, counters) for to in moves(symmetry, rank)] == there
