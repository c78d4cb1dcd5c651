"""What collectives take by themselves, on networks whose answers are sums of a few numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.planner.toy import MACHINE
from weft.collectives import collective
from weft.cost.nccl import library_price
from weft.cost.ranges import range_term
from weft.errors import UnknownNameError
from weft.hardware import platform
from weft.hardware.network import Level
from weft.hardware.platform import Host
from weft.hardware.recorded_device import Exchange, Recorded
from weft.planner import prices as prices_module
from weft.planner.prices import (
    Prices,
    default_library,
    known_library,
    levels_of,
    seconds_by,
)
from weft.schedule import Cost
from weft.simulator import simulate
from weft.step import Collective

INNER, OUTER = Level("switch", 2, 100e9, 1e-6), Level("switch", 4, 10e9, 5e-6)
NODES = replace(MACHINE, levels=(INNER, OUTER), sources={})  # four nodes of two
ALL = tuple(range(8))
GIB = 1 << 30


def price(kind, nbytes, ranks=ALL, machine=NODES, library="no library"):
    return Prices(machine, library).collective_price(Collective(kind, nbytes), tuple(ranks))


def seconds(*asked, **more):
    return price(*asked, **more).seconds


# What a group sees of the network.


parts = st.integers(1, 4).flatmap(lambda size: st.tuples(st.just(size), st.integers(1, size)))


@given(st.lists(parts, min_size=1, max_size=3))
@example([(2, 1), (3, 3), (4, 2)])
def test_the_levels_of_a_regular_group_have_as_many_ranks_as_it(taken):
    machine = replace(NODES, levels=tuple(Level("switch", size, 1e9) for size, _ in taken))
    ranks, stride = [0], 1
    for size, count in taken:
        ranks = [rank + each * stride for each in range(count) for rank in ranks]
        stride *= size
    assert [level.size for level in levels_of(machine, tuple(ranks))] == [n for _, n in taken]


def test_a_whole_level_is_seen_as_it_is_and_a_part_of_a_mesh_has_fewer_links():
    mesh = replace(NODES, levels=(Level("mesh", 8, 70e9, 1e-6),))
    assert levels_of(mesh, ALL) == mesh.levels
    (part,) = levels_of(mesh, (0, 1, 2))
    assert (part.size, part.rate) == pytest.approx((3, 20e9))


def test_a_group_is_looked_at_once():
    prices = Prices(NODES)
    assert prices.levels((0, 1)) is prices.levels((0, 1))
    what = Collective("all_reduce", 64)
    assert prices.collective_price(what, (0, 1)) is prices.collective_price(what, (2, 3))


# Messages.


@pytest.mark.parametrize("kind", ["send", "recv"])
@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ((0, 1), 1e-6 + 1e9 / 100e9),
        ((0, 2), 5e-6 + 1e9 / 10e9),
        ((0, 1, 2, 3), 5e-6 + 1e9 / 10e9),  # over both levels: the slower one decides
    ],
)
def test_a_message_takes_the_latency_and_its_bytes_over_the_slowest_level(kind, ranks, expected):
    found = price(kind, 10**9, ranks)
    assert found.seconds == pytest.approx(expected)
    low, high = range_term("collectives", "simulated").factors
    assert (found.low, found.high) == pytest.approx((low * expected, high * expected))


def test_a_message_takes_one_link_of_a_mesh():
    mesh = replace(NODES, levels=(Level("mesh", 8, 70e9, 1e-6),))
    assert seconds("send", 10**9, (0, 1), mesh) == pytest.approx(1e-6 + 1e9 / 10e9)


# Collectives.


@pytest.mark.parametrize(
    ("kind", "share"),
    [
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_reduce", 7 / 4),
        ("all_to_all", 7 / 8),
    ],
)
def test_a_large_collective_inside_a_node_fills_its_links(kind, share):
    node = replace(NODES, levels=(Level("switch", 8, 10e9, 1e-6),))
    assert seconds(kind, GIB, machine=node) == pytest.approx(share * GIB / 10e9, rel=0.1)


def test_an_exchange_between_nodes_waits_for_what_leaves_them():
    # Six of eight parts go to other nodes.
    assert seconds("all_to_all", GIB) == pytest.approx(6 / 8 * GIB / 10e9, rel=0.02)


def test_what_goes_between_nodes_passes_no_memory_that_ranks_of_one_share():
    slow = Host(memory_rate=1e9, link_rate=10e9, link_latency=1e-6)
    staged = replace(NODES, staged=True, host=slow)
    for kind in ("all_gather", "all_reduce", "all_to_all", "broadcast", "reduce"):
        one_a_node = seconds(kind, GIB, (0, 2, 4, 6), staged)
        assert one_a_node == seconds(kind, GIB, (0, 2, 4, 6))
        assert seconds(kind, GIB, (0, 1), staged) > seconds(kind, GIB, (0, 1))


def test_an_exchange_among_very_many_nodes_takes_as_long_as_its_port():
    many = replace(NODES, levels=(INNER, replace(OUTER, size=128)))
    ranks = tuple(range(256))
    assert seconds("all_to_all", GIB, ranks, many) == pytest.approx(
        254 / 256 * GIB / 10e9, rel=0.01
    )


@pytest.mark.parametrize("nodes", [63, 64, 65, 100])
def test_simulating_fewer_nodes_of_an_exchange_changes_nothing(nodes):
    large = replace(NODES, levels=(INNER, replace(OUTER, size=nodes)))
    exact = seconds_by(large, "all_to_all", "direct", GIB)
    found = seconds("all_to_all", GIB, tuple(range(2 * nodes)), large)
    assert found == pytest.approx(exact, rel=2e-3)
    assert (found == exact) == (nodes <= 64)


def fastest(machine, kind, nbytes, *names):
    found = [seconds_by(machine, kind, name, nbytes) for name in names]
    return min(each for each in found if each is not None)


@pytest.mark.parametrize("ranks", [4, 8])
def test_between_nodes_a_reduce_scatter_is_an_all_gather_backwards(ranks):
    asked = tuple(range(ranks))
    assert seconds("reduce_scatter", GIB, asked) == seconds("all_gather", GIB, asked)


def test_a_reduce_scatter_that_is_not_of_several_ranks_of_several_nodes_is_itself():
    flat, known = replace(NODES, levels=(OUTER,)), ("halving-doubling", "ring")
    apart = seconds("reduce_scatter", GIB, (0, 2, 4, 6))  # one of each node
    assert apart == fastest(flat, "reduce_scatter", GIB, *known)
    inside = seconds("reduce_scatter", GIB, (0, 1, 2, 3), flat)
    assert inside == fastest(flat, "reduce_scatter", GIB, "direct", *known)


DEEP = replace(NODES, levels=(INNER, Level("switch", 4, 50e9, 2e-6), OUTER), node_levels=2)


@pytest.mark.parametrize(
    ("ranks", "as_if", "inside"),
    [
        (range(32), DEEP, ()),
        (range(0, 32, 2), replace(DEEP, levels=DEEP.levels[1:], node_levels=1), ()),
        (range(0, 8, 2), replace(DEEP, levels=DEEP.levels[1:2], node_levels=1), ("direct",)),
        (range(0, 32, 8), replace(DEEP, levels=DEEP.levels[2:], node_levels=1), ()),
    ],
)
def test_a_group_takes_what_a_machine_of_the_levels_that_it_has_would(ranks, as_if, inside):
    known = ("hierarchical", "halving-doubling", "ring", *inside)
    assert seconds("all_reduce", GIB, ranks, DEEP) == fastest(as_if, "all_reduce", GIB, *known)


def test_a_barrier_reduces_one_number():
    assert seconds("barrier", 0) == seconds("all_reduce", 8) > 0


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast", "gather", "scatter"])
@pytest.mark.parametrize("nbytes", [1 << 12, 1 << 26])
def test_the_fastest_algorithm_counts(kind, nbytes):
    tried = {
        "all_reduce": ("hierarchical", "halving-doubling", "ring"),
        "all_gather": ("hierarchical", "halving-doubling", "ring"),
        "broadcast": ("hierarchical", "scatter-allgather"),
        "gather": ("direct",),
        "scatter": ("direct",),
    }[kind]
    assert seconds(kind, nbytes) == fastest(NODES, kind, nbytes, *tried)


def test_a_reduction_to_one_rank_has_a_price_inside_a_node():
    found = fastest(NODES.resized(2), "reduce", 64, "pull", "eager")
    assert seconds("reduce", 64, (0, 1)) == found


def test_a_reduction_to_one_rank_has_a_price_between_nodes():
    assert seconds("reduce", 64) > 0


def test_inside_a_node_all_links_are_used_at_once():
    mesh = replace(NODES, levels=(Level("mesh", 8, 70e9, 1e-6),))
    direct = seconds_by(mesh, "all_gather", "direct", GIB)
    ring = seconds_by(mesh, "all_gather", "ring", GIB)
    assert direct is not None
    assert ring is not None
    assert seconds("all_gather", GIB, machine=mesh) == direct < ring / 5


def test_a_broadcast_inside_a_node_uses_all_links_as_a_reduction_does():
    mesh = replace(NODES, levels=(Level("mesh", 8, 70e9, 1e-6),))
    ring = seconds_by(mesh, "broadcast", "scatter-allgather", GIB)
    assert ring is not None
    took = seconds("broadcast", GIB, machine=mesh)
    assert took == seconds("reduce", GIB, machine=mesh) < ring / 4


def test_among_very_many_ranks_the_first_algorithm_is_enough(monkeypatch):
    first = seconds_by(NODES, "all_reduce", "hierarchical", 64)
    monkeypatch.setattr(prices_module, "_MANY", 8)
    known = ("hierarchical", "halving-doubling", "ring")
    assert seconds("all_reduce", 64) == fastest(NODES, "all_reduce", 64, *known)
    monkeypatch.setattr(prices_module, "_MANY", 7)
    assert seconds("all_reduce", 64) == first


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("ranks", [(0, 1), (0, 2, 4, 6), ALL])
def test_more_bandwidth_is_never_slower_and_more_bytes_never_faster(kind, ranks):
    faster = replace(
        NODES, levels=tuple(replace(each, rate=2 * each.rate) for each in (INNER, OUTER))
    )
    assert seconds(kind, GIB, ranks, faster) < seconds(kind, GIB, ranks)
    assert seconds(kind, 2 * GIB, ranks) > seconds(kind, GIB, ranks)


def test_parts_that_do_not_divide_are_rounded_up():
    assert seconds_by(NODES, "all_gather", "ring", 9) == seconds_by(NODES, "all_gather", "ring", 16)
    schedule = collective("all_gather", "ring", num_ranks=8, nbytes=16, node_size=2)
    assert seconds_by(NODES, "all_gather", "ring", 16) == pytest.approx(
        simulate(schedule, NODES).makespan, rel=1e-2
    )


def test_an_algorithm_that_does_not_apply_has_no_price():
    assert seconds_by(NODES.resized(4), "reduce", "pull", 64) is None  # reads in other nodes
    assert seconds_by(NODES.resized(2), "reduce", "pull", 64) is not None
    assert seconds_by(NODES.resized(2), "all_reduce", "hierarchical", 64) is None  # has one level


def test_where_no_algorithm_applies_the_slowest_link_bounds_it(monkeypatch):
    monkeypatch.setitem(prices_module._ALGORITHMS, "all_to_all", ())
    found = price("all_to_all", 10**9)
    assert found.model == "link"
    assert found.seconds == pytest.approx(5e-6 + 7 / 8 * 1e9 / 10e9)


def test_an_unknown_collective_is_named():
    with pytest.raises(UnknownNameError, match="'all_gathr'") as caught:
        price("all_gathr", 64)
    assert "all_gather" in caught.value.hint


@pytest.mark.parametrize(
    ("kind", "nbytes", "ranks"),
    [("all_reduce", 0, ALL), ("all_reduce", 64, (3,)), ("send", 0, ALL)],
)
def test_nothing_is_moved_in_no_time(kind, nbytes, ranks):
    found = price(kind, nbytes, ranks)
    assert (found.seconds, found.low, found.high) == (0, 0, 0)


# What libraries were measured to take.


def test_inside_a_node_the_measured_library_counts_and_its_range_is_narrow():
    found = price("all_reduce", GIB, machine=MACHINE, library="nccl")
    priced = library_price(MACHINE, "all_reduce", GIB)
    assert found.model == "nccl, measured"
    assert (found.low, found.high) == pytest.approx(
        (priced.low * found.seconds, priced.high * found.seconds)
    )
    assert priced.high < range_term("collectives", "simulated").factors[1]


TWO_NODES = replace(MACHINE, levels=(*MACHINE.levels, replace(OUTER, size=2)))


@pytest.mark.parametrize(
    ("library", "ranks", "kind"),
    [
        ("no library", (0, 1), "all_reduce"),
        ("nccl", (0, 1), "gather"),  # nobody measured it
    ],
)
def test_all_else_is_simulated_with_a_wide_range(library, ranks, kind):
    found = price(kind, GIB, ranks, TWO_NODES, library)
    low, high = range_term("collectives", "simulated").factors
    assert found.model == "simulated"
    assert (found.low, found.high) == pytest.approx((low * found.seconds, high * found.seconds))


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "all_to_all", "send", "broadcast"])
def test_between_nodes_the_algorithms_of_the_library_count(kind):
    found = price(kind, GIB, (0, 8), TWO_NODES, "nccl")
    expected = library_price(
        replace(TWO_NODES, levels=TWO_NODES.levels[1:], node_levels=0), kind, GIB
    )
    assert found.model == "nccl, its algorithms"
    assert found.seconds == expected.seconds
    assert (found.low, found.high) == pytest.approx(
        (expected.low * found.seconds, expected.high * found.seconds)
    )


def test_the_library_is_that_of_the_machine():
    assert default_library(replace(MACHINE, libraries=())) == "nccl"
    core = replace(MACHINE.require_device(), units=1)
    assert default_library(replace(MACHINE, device=core, libraries=())) == "gloo"
    assert known_library(MACHINE, "nccl") == "nccl"  # nothing was measured there
    with pytest.raises(UnknownNameError, match="anything"):
        known_library(MACHINE, "anything")


def test_a_kernel_is_priced_with_its_range():
    cost = Cost("gemm", (4096, 4096, 4096), "bf16")
    found = Prices(MACHINE).kernel_price(cost)
    assert Prices(MACHINE).kernel(cost) == found.seconds
    assert found.low < found.seconds < found.high


def test_what_was_recorded_counts_alike_in_whichever_order_groups_are_asked_for():
    machine = replace(
        platform("h100-8x8"),
        recorded=Recorded(collectives=(Exchange("all_reduce", 1 << 24, 8, 1e-3),)),
    )
    what = Collective("all_reduce", 1 << 24, "bf16")
    inside, across = tuple(range(8)), tuple(range(0, 64, 8))
    for groups in ((inside, across), (across, inside)):
        prices = Prices(machine)
        assert [prices.collective(what, group) for group in groups] == pytest.approx([1e-3, 1e-3])
