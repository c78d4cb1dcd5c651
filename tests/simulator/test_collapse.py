"""Ranks that do the same are simulated once, and nothing but the cost changes."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.uneven_all_to_all import uneven_all_to_all
from tests.simulator.builders import LARGE, NETWORKS, build, cases
from weft.collectives import collective
from weft.hardware import platform
from weft.simulator import simulate

pytestmark = pytest.mark.thorough

BYTES = 40_000  # of each rank


def check_collapsed(schedule, network):
    """The makespan, the spans of representatives and the energy are those of all ranks."""
    collapsed = simulate(schedule, network)
    expanded = simulate(schedule, network, collapse=False)
    assert collapsed.seconds == pytest.approx(expanded.seconds, rel=1e-9)
    assert collapsed.total_joules == pytest.approx(expanded.total_joules, rel=1e-9)
    assert collapsed.represents.sum() == expanded.represents.sum() == network.num_ranks
    same = expanded.of(rank=tuple(collapsed.ranks.tolist()))
    assert [collapsed.queues[q] for q in collapsed.queue] == [same.queues[q] for q in same.queue]
    for column in ("rank", "lane", "id", "kind", "nbytes"):
        assert np.array_equal(getattr(collapsed, column), getattr(same, column))
    for column in ("start", "end", "joules"):
        have, want = getattr(collapsed, column), getattr(same, column)
        assert have == pytest.approx(want, rel=1e-9, abs=1e-9 * expanded.seconds)
    return collapsed


@pytest.mark.parametrize(("kind", "algorithm", "network"), cases(NETWORKS))
def test_collapsed_equals_expanded(kind, algorithm, network):
    found = platform(network)
    check_collapsed(build(kind, algorithm, found, BYTES), found)


@pytest.mark.parametrize(("kind", "algorithm", "network"), LARGE)
def test_collapsed_equals_expanded_for_64_ranks(kind, algorithm, network):
    found = platform(network)
    check_collapsed(build(kind, algorithm, found, BYTES), found)


@pytest.mark.parametrize(
    ("kind", "algorithm", "network", "classes"),
    [
        ("all_reduce", "ring", "ring(16)@1GiB/s", 1),
        ("all_reduce", "ring", "switch(16)@1GiB/s", 1),
        ("all_to_all", "direct", "mesh(16)@1GiB/s", 1),
        ("all_reduce", "halving-doubling", "switch(16)@1GiB/s", 1),
        ("all_reduce", "hierarchical", "switch(4)@2GiB/s/switch(4)@1GiB/s", 1),
        ("all_reduce", "hierarchical", "mi300x-8x4", 1),
        ("all_reduce", "halving-doubling", "ring(16)@1GiB/s", 16),  # flips do not turn a ring
        ("all_gather", "ring", "switch(4)@2GiB/s/switch(4)@1GiB/s", 4),  # the edges of a node
        ("broadcast", "chain", "switch(16)@1GiB/s", 16),
        ("all_gather", "dma", "mi300x-8", 8),
    ],
)
def test_as_many_ranks_are_simulated_as_differ(kind, algorithm, network, classes):
    found = platform(network)
    collapsed = check_collapsed(build(kind, algorithm, found, BYTES), found)
    assert len(collapsed.ranks) == classes


def test_chunks_of_unequal_size_are_not_taken_for_equal():
    network = platform("switch(8)@1GiB/s,1us")
    schedule = collective("all_reduce", "ring", num_ranks=8, nbytes=1_000_003)
    assert len(check_collapsed(schedule, network).ranks) == 8


def test_a_table_of_equal_sizes_collapses_and_of_unequal_ones_does_not():
    network = platform("switch(4)@1GiB/s,1us")
    equal = [[5000] * 4 for _ in range(4)]
    assert len(check_collapsed(uneven_all_to_all(equal), network).ranks) == 1
    unequal = [[5000 + i * j for i in range(4)] for j in range(4)]
    assert len(check_collapsed(uneven_all_to_all(unequal), network).ranks) == 4


def test_part_of_a_platform_collapses_too():
    schedule = collective("all_to_all", "direct", num_ranks=5, nbytes=50_000)
    collapsed = simulate(schedule, platform("mi300x-8"))
    expanded = simulate(schedule, platform("mi300x-8"), collapse=False)
    assert len(collapsed.ranks) == 1
    assert collapsed.seconds == pytest.approx(expanded.seconds, rel=1e-9)
