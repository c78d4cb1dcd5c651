"""The solver alone: against progressive filling, and against what max-min fair means."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.reference import Flow, fill
from weft import _core

weights = st.sampled_from([0.25, 1.0, 1.0, 1.0, 2.0, 3.5])
caps = st.one_of(st.just(inf), st.just(inf), st.floats(0.1, 50))


@st.composite
def problems(draw):
    """A few resources, some of them with no capacity at all, and flows over several of them."""
    capacity = draw(st.lists(st.sampled_from([0.0, 1.0, 7.0, 10.0, 64.0, 100.0]), max_size=8))
    resources = st.integers(0, max(len(capacity) - 1, 0))
    demands = st.dictionaries(resources, weights, max_size=min(4, len(capacity)))
    return draw(st.lists(st.builds(Flow, demands, caps), max_size=20)), capacity


@st.composite
def ports(draw):
    """What the solver is fast at: transfers from port to port, all of weight one."""
    n = draw(st.integers(2, 90))
    ends = st.tuples(st.integers(0, n - 1), st.integers(n, 2 * n - 1))
    pairs = draw(st.lists(ends, min_size=1, max_size=200))
    capacity = draw(st.lists(st.floats(1, 100), min_size=2 * n, max_size=2 * n))
    return [Flow({a: 1.0, b: 1.0}) for a, b in pairs], capacity


def fair_rates(entries, caps, capacity):
    """``entries`` are (resource, weight) by flow."""
    start = np.cumsum([0, *map(len, entries)])
    flat = [entry for flow in entries for entry in flow]
    columns: dict[str, np.ndarray] = {
        "demand_start": start.astype(np.int64),
        "demand_resource": np.array([r for r, _ in flat], np.int32),
        "demand_weight": np.array([w for _, w in flat], np.float64),
        "cap": np.array(caps, np.float64),
        "capacity": np.array(capacity, np.float64),
    }
    rates = np.zeros(len(entries))
    _core.fair_rates(columns, rates)
    return rates


def rates_of(flows, capacity):
    return fair_rates([list(f.weights.items()) for f in flows], [f.cap for f in flows], capacity)


@given(problems() | ports())
def test_rates_are_those_of_progressive_filling(problem):
    flows, capacity = problem
    assert rates_of(flows, capacity) == pytest.approx(fill(flows, capacity), rel=1e-9)


@given(problems() | ports())
def test_no_resource_gives_more_than_it_has(problem):
    flows, capacity = problem
    assert (used(flows, rates_of(flows, capacity), capacity) <= np.array(capacity) + 1e-9).all()


@given(problems() | ports())
def test_every_flow_is_at_its_cap_or_among_the_fastest_of_a_full_resource(problem):
    flows, capacity = problem
    rates = rates_of(flows, capacity)
    full = used(flows, rates, capacity) >= np.array(capacity) * (1 - 1e-9)
    for flow, rate in zip(flows, rates, strict=True):
        fastest = [
            max(other for f, other in zip(flows, rates, strict=True) if r in f.weights)
            for r in flow.weights
            if full[r]
        ]
        at_cap = rate == pytest.approx(flow.cap, rel=1e-9)
        assert at_cap or any(rate >= most * (1 - 1e-9) for most in fastest)


@given(problems())
def test_a_flow_may_demand_a_resource_in_several_parts(problem):
    flows, capacity = problem
    halves = [[(r, w / 2) for r, w in f.weights.items() for _ in range(2)] for f in flows]
    rates = fair_rates(halves, [f.cap for f in flows], capacity)
    assert rates == pytest.approx(rates_of(flows, capacity), rel=1e-9)


def test_a_cap_met_exactly_when_a_resource_fills_is_counted_once():
    flows = [Flow({0: 1, 1: 1}, cap=5.0), Flow({0: 1}), Flow({1: 1})]
    assert rates_of(flows, [10.0, 20.0]) == pytest.approx([5, 5, 15])


def test_a_flow_without_resources_is_not_limited():
    assert rates_of([Flow({}), Flow({}, cap=3.0)], []).tolist() == [inf, 3.0]


def test_nothing_flows_through_what_has_no_capacity():
    flows = [Flow({0: 1, 1: 1}), Flow({1: 1})]
    assert rates_of(flows, [0.0, 10.0]).tolist() == [0.0, 10.0]


def used(flows, rates, capacity):
    total = np.zeros(len(capacity))
    for flow, rate in zip(flows, rates, strict=True):
        for resource, weight in flow.weights.items():
            total[resource] += weight * rate
    return total


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("demand_resource", np.array([2], np.int32), "demand_resource is out of range"),
        ("demand_start", np.array([0, 2]), "demand_start does not cover its entries"),
        ("demand_start", np.array([1, 0]), "demand_start goes back"),
        ("demand_start", np.array([0]), "demand_start has the wrong length"),
        ("demand_weight", np.array([0.0]), "demand_weight is not positive"),
        ("demand_weight", np.array([np.nan]), "demand_weight is not positive"),
        ("cap", np.array([-1.0]), "cap is negative"),
        ("capacity", np.array([np.nan]), "capacity is negative"),
    ],
)
def test_columns_that_could_do_harm_are_refused(name, wrong, message):
    columns = {
        "demand_start": np.array([0, 1]),
        "demand_resource": np.array([0], np.int32),
        "demand_weight": np.array([1.0]),
        "cap": np.array([inf]),
        "capacity": np.array([1.0]),
    }
    with pytest.raises(ValueError, match=message):
        _core.fair_rates({**columns, name: wrong}, np.zeros(1))
