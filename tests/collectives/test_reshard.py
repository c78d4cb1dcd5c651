"""Resharding: any mesh and placement to any other one, by value, on arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.arrays import Machine
from weft.collectives.reshard import Box, ReshardPlan, TensorSharding
from weft.errors import UsageError
from weft.schedule.check import check

NUM_RANKS = 6


@st.composite
def shardings(draw, num_dims):
    mesh = draw(st.sampled_from([(1,), (2,), (3,), (5,), (2, 2), (3, 2), (1, 2)]))
    ranks = tuple(draw(st.permutations(range(NUM_RANKS)))[: int(np.prod(mesh))])
    dims = st.one_of(st.none(), st.integers(0, num_dims - 1))
    return TensorSharding(ranks, mesh, tuple(draw(dims) for _ in mesh))


@st.composite
def plans(draw):
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=3).map(tuple))
    return ReshardPlan(NUM_RANKS, shape, draw(shardings(len(shape))), draw(shardings(len(shape))))


def part(values, box):
    return values[tuple(map(slice, box.start, box.stop))]


def filled(plan, values):
    """Return the memory of every source, packed where the plan says so."""
    memory = {}
    for rank, box in plan.source_boxes.items():
        parts = [part(values, t.box).ravel() for t in plan.transfers if t.source == rank]
        packed = rank in plan.packed
        memory[rank] = np.concatenate(parts) if packed else part(values, box).ravel()
    return memory


@given(plans(), st.integers(0, 99))
@settings(max_examples=150, deadline=None)
def test_every_destination_has_its_part(plan, seed):
    schedule = plan.schedule(4)
    check(schedule)
    machine = Machine(schedule, seed)
    for execution in range(2):
        values = np.arange(np.prod(plan.shape), dtype=np.int32).reshape(plan.shape) + execution
        for rank, data in filled(plan, values).items():
            machine.memory[rank, "in"][:] = data.view(np.uint8)
        machine.run()
        for rank, box in plan.destination_boxes.items():
            have, want = machine.memory[rank, "out"].view(np.int32), part(values, box)
            if rank in plan.unpacked:
                out = np.zeros(box.shape, np.int32)
                for t in plan.transfers:
                    if t.destination == rank:
                        there = part(out, t.box.within(box))
                        at = t.destination_offset
                        there[...] = have[at : at + t.box.num_elements].reshape(t.box.shape)
                have = out.ravel()
            assert np.array_equal(have, want.ravel())


def test_parts_are_those_of_torch_chunk():
    sharding = TensorSharding((0, 1, 2), (3,), (0,))
    lengths = [sharding.box(position, (7, 2)).shape for position in range(3)]
    assert lengths == [(3, 2), (3, 2), (1, 2)]
    assert [sharding.box(p, (2,)).shape for p in range(3)] == [(1,), (1,), (0,)]


def test_a_pair_of_ranks_needs_one_copy_and_replicas_take_turns():
    source = TensorSharding((0, 1), (2,), (None,))
    plan = ReshardPlan(6, (8, 4), source, TensorSharding((2, 3, 4, 5), (4,), (0,)))
    assert [(t.source, t.destination) for t in plan.transfers] == [(0, 2), (1, 3), (0, 4), (1, 5)]
    assert not plan.packed | plan.unpacked


def test_columns_are_packed_by_the_source_or_unpacked_by_the_destination():
    rows, columns = TensorSharding((0, 1), (2,), (0,)), TensorSharding((2, 3), (2,), (1,))
    plan = ReshardPlan(6, (4, 4), rows, columns)
    assert plan.packed == {0, 1}
    assert not plan.unpacked  # two rows of all its columns are contiguous
    assert ReshardPlan(6, (4, 4), columns, rows).unpacked == {0, 1}


def test_a_box_is_contiguous_if_only_its_first_long_dimension_is_partial():
    outer = Box((0, 0, 0), (4, 5, 6))
    assert Box((1, 0, 0), (3, 5, 6)).offset_in(outer) == 30
    assert Box((1, 2, 0), (2, 4, 6)).offset_in(outer) == 42
    assert Box((1, 2, 0), (3, 4, 6)).offset_in(outer) is None
    assert Box((0, 0, 1), (4, 5, 2)).offset_in(outer) is None


@pytest.mark.parametrize(
    ("sharding", "text"),
    [
        (TensorSharding((0, 0), (2,), (0,)), "different ranks"),
        (TensorSharding((0, 6), (2,), (0,)), "from 0 to 5"),
        (TensorSharding((0, 1, 2), (2,), (0,)), "mesh of 3 ranks"),
        (TensorSharding((0, 1), (2,), (0, 1)), "a placement for each"),
        (TensorSharding((0, 1), (2,), (2,)), "from 0 to 1"),
    ],
)
def test_wrong_shardings_are_refused(sharding, text):
    fine = TensorSharding((0, 1), (2,), (0,))
    with pytest.raises(UsageError, match=text):
        ReshardPlan(6, (4, 4), fine, sharding)
