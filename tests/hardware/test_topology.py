"""Paths: which levels a transfer crosses, between which ranks, and how long a signal takes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.hardware import Level
from weft.hardware.topology import crossings, latencies, ring_hops

kinds = st.sampled_from(["switch", "ring", "mesh"])


def levels_of(kind=kinds, most=3):
    level = st.builds(Level, kind, st.integers(1, 6), st.just(1e9), st.floats(0, 1e-5))
    return st.lists(level, min_size=1, max_size=most).map(tuple)


@st.composite
def pairs(draw, levels):
    """A network and two of its ranks."""
    network = draw(levels)
    rank = st.integers(0, math.prod(level.size for level in network) - 1)
    return network, draw(rank), draw(rank)


def path(levels, src, dst):
    """(level, from, to) for each level that is crossed."""
    found = crossings(levels, np.array([src]), np.array([dst]))
    return [(c.level, int(c.src[0]), int(c.dst[0])) for c in found]


def latency(levels, src, dst):
    return float(latencies(levels, np.array([src]), np.array([dst]))[0])


@given(pairs(levels_of()))
def test_a_path_leads_from_source_to_destination_by_one_crossing_a_level(network):
    levels, src, dst = network
    steps = path(levels, src, dst)
    assert [level for level, _, _ in steps] == sorted({level for level, _, _ in steps})
    here = src
    for level, start, stop in steps:
        assert start == here
        stride = math.prod(below.size for below in levels[:level])
        assert (stop - start) % stride == 0  # only this coordinate changes
        assert start // (stride * levels[level].size) == stop // (stride * levels[level].size)
        here = stop
    assert here == dst


@given(pairs(levels_of()))
def test_a_level_is_crossed_where_the_two_ranks_differ(network):
    levels, src, dst = network
    crossed = {level for level, _, _ in path(levels, src, dst)}
    stride = 1
    for number, level in enumerate(levels):
        differ = src // stride % level.size != dst // stride % level.size
        assert (number in crossed) == differ
        stride *= level.size


def test_two_levels_are_crossed_from_the_inside_out():
    levels = (Level("switch", 4, 1e9), Level("switch", 3, 1e9))
    assert path(levels, 1, 10) == [(0, 1, 2), (1, 2, 10)]
    assert path(levels, 10, 1) == [(0, 10, 9), (1, 9, 1)]
    assert path(levels, 5, 9) == [(1, 5, 9)]
    assert path(levels, 7, 7) == []


@given(pairs(levels_of()))
def test_latency_is_the_same_both_ways(network):
    levels, src, dst = network
    assert latency(levels, src, dst) == pytest.approx(latency(levels, dst, src))


@given(pairs(levels_of(st.sampled_from(["switch", "mesh"]))))
def test_a_switch_or_mesh_counts_once_whatever_the_distance(network):
    levels, src, dst = network
    crossed = sum(levels[level].latency for level, _, _ in path(levels, src, dst))
    assert latency(levels, src, dst) == pytest.approx(crossed)


@given(size=st.integers(1, 20), data=st.data())
def test_a_ring_is_walked_the_shorter_way(size, data):
    src, dst = (data.draw(st.integers(0, size - 1)) for _ in range(2))
    hops = ring_hops(size, src, dst)
    assert (src + hops) % size == dst
    assert abs(hops) == min((dst - src) % size, (src - dst) % size)
    ring = (Level("ring", size, 1e9, 1e-6),)
    assert latency(ring, src, dst) == pytest.approx(abs(hops) * 1e-6)


def test_half_way_round_goes_up():
    assert ring_hops(8, 0, 4) == 4
    assert ring_hops(8, 6, 2) == 4


def test_an_outer_ring_is_walked_by_groups():
    levels = (Level("switch", 4, 1e9, 1e-6), Level("ring", 6, 1e9, 1e-5))
    assert latency(levels, 1, 1 + 5 * 4) == pytest.approx(1e-5)
    assert latency(levels, 0, 3 + 3 * 4) == pytest.approx(3e-5 + 1e-6)


@given(data=st.data())
def test_many_transfers_at_once_are_each_as_alone(data):
    levels = data.draw(levels_of())
    rank = st.integers(0, math.prod(level.size for level in levels) - 1)
    ends = data.draw(st.lists(st.tuples(rank, rank), max_size=10))
    src, dst = np.array(ends, np.int64).reshape(-1, 2).T
    want = [latency(levels, *pair) for pair in ends]
    assert latencies(levels, src, dst) == pytest.approx(want)
    paths: list[list[tuple[int, int, int]]] = [[] for _ in ends]
    for c in crossings(levels, src, dst):
        for number, start, stop in zip(c.transfers, c.src, c.dst, strict=True):
            paths[number].append((c.level, int(start), int(stop)))
    assert paths == [path(levels, *pair) for pair in ends]
