"""Resources are told apart, and demands collected piece by piece come out by row."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from weft.simulator.resource_demands import Demands, Resource, key, resource_kind, resource_owner

kinds = st.sampled_from(list(Resource))
owners = st.integers(0, 2**32 - 1)
levels = st.integers(0, 15)
parts = st.integers(0, 2**22 - 1)
names = st.tuples(kinds, owners, levels, parts)


def named(kind, owner, level, part):
    return key(kind, np.array([owner]), level=level, part=part)


@given(names)
def test_a_key_says_its_kind_and_its_owner(name):
    found = named(*name)
    assert resource_kind(found).tolist() == [name[0]]
    assert resource_owner(found).tolist() == [name[1]]


@given(names, names)
def test_different_resources_have_different_keys(one, other):
    assert (named(*one) == named(*other)).all() == (one == other)


def test_demands_come_out_by_row_with_the_resources_that_they_name():
    """Row 2 first, then rows 0 and 2 of another resource; row 1 demands nothing."""
    memory, link = (key(kind, np.array([5, 5])) for kind in (Resource.MEMORY, Resource.LINK))
    demands = Demands()
    demands.add(np.array([2]), memory[:1], 3.0, 100.0)
    demands.add(np.array([0, 2]), link, np.array([1.0, 2.0]), 10.0)
    found = demands.columns(4)
    assert found["demand_start"].tolist() == [0, 1, 1, 3, 3]
    by_row = list(
        zip(found["key"][found["demand_resource"]], found["demand_weight"].tolist(), strict=True)
    )
    assert by_row == [(link[0], 1.0), (memory[0], 3.0), (link[0], 2.0)]
    capacity = dict(zip(found["key"].tolist(), found["capacity"].tolist(), strict=True))
    assert capacity == {int(memory[0]): 100.0, int(link[0]): 10.0}


def test_nothing_demanded_is_empty_columns():
    found = Demands().columns(2)
    assert found["demand_start"].tolist() == [0, 0, 0]
    assert not any(len(found[name]) for name in ("demand_resource", "demand_weight", "capacity"))
