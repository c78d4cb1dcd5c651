"""Orders that hide collectives are valid, keep to a memory limit and expose no more than before."""

from __future__ import annotations

import random

import pytest

from weft.gpu.overlap_order import OrderPolicy, OverlapGraph, OverlapNode, best_order, ordered

MIB = 1 << 20


def random_graph(seed, layers=6):
    """Return layers of a gather from inputs, a product, and sometimes a reduction of its result."""
    draw = random.Random(seed)
    nodes = [OverlapNode((), uses=(0,))]
    before, storage = 0, 1
    for _ in range(layers):
        cast = len(nodes)
        nodes.append(OverlapNode((0,), 1e-6, allocates=((storage, MIB),), uses=(0, storage)))
        start = len(nodes)
        size = draw.randint(1, 8) * MIB
        nodes.append(
            OverlapNode(
                (cast,),
                group=draw.choice("ab"),
                comm=draw.uniform(1, 5) * 1e-3,
                allocates=((storage + 1, size),),
                uses=(storage, storage + 1),
            )
        )
        nodes.append(OverlapNode((start,), waits_for=start, uses=(storage + 1,)))
        product = len(nodes)
        nodes.append(
            OverlapNode(
                (product - 1, before),
                draw.uniform(1, 5) * 1e-3,
                allocates=((storage + 2, MIB),),
                uses=(storage + 1, storage + 2),
            )
        )
        before = product
        storage += 3
        if draw.random() < 0.5:
            reduces = len(nodes)
            nodes.append(OverlapNode((product,), group="a", comm=2e-3, uses=(storage - 1,)))
            nodes.append(OverlapNode((reduces,), waits_for=reduces, uses=(storage - 1,)))
    nodes.append(OverlapNode(tuple(range(len(nodes)))))
    return OverlapGraph(tuple(nodes), frozenset({0}))


def is_valid(graph, order):
    place = {number: turn for turn, number in enumerate(order)}
    assert len(place) == len(graph.nodes) == len(order)
    return all(place[i] < place[n] for n, node in enumerate(graph.nodes) for i in node.inputs)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("more", [0, 4 * MIB, 1 << 40])
def test_the_best_order_is_valid_within_memory_and_exposes_no_more(seed, more):
    graph = random_graph(seed)
    program = graph.replay(range(len(graph.nodes)))
    order = best_order(graph, program.peak + more)
    found = graph.replay(order)
    assert is_valid(graph, order)
    assert found.peak <= program.peak + more
    assert found.exposed <= program.exposed + 1e-12
    assert found.seconds >= max(graph.compute, *graph.ranks) - 1e-12


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("by_rank", [False, True])
def test_a_list_schedule_never_runs_a_node_twice_or_before_its_inputs(seed, by_rank):
    graph = random_graph(seed, layers=20)
    order = ordered(graph, OrderPolicy(1.0, 64, by_rank, 1 << 50, 1 << 50))
    assert order is not None
    assert is_valid(graph, order)


def test_a_gather_is_prefetched_behind_the_computation_before_it():
    free = 1 << 40
    graph = random_graph(3)
    hidden = graph.replay(best_order(graph, free))
    assert hidden.exposed < 0.7 * graph.replay(range(len(graph.nodes))).exposed


def test_memory_that_is_too_little_for_a_policy_gives_no_order():
    assert ordered(random_graph(1), OrderPolicy(1.0, 64, False, 1, 1)) is None


def test_buffers_of_a_collective_are_held_until_it_is_waited_for():
    nodes = (
        OverlapNode((), 1.0, allocates=((1, 10),), uses=(1,)),
        OverlapNode((0,), group="a", comm=1.0, allocates=((2, 100),), uses=(1, 2)),
        OverlapNode((), 1.0, allocates=((3, 1000),), uses=(3,)),
        OverlapNode((1,), waits_for=1, uses=(2,)),
    )
    graph = OverlapGraph(nodes)
    assert graph.replay([0, 1, 2, 3]).peak == 1110
    assert graph.replay([0, 1, 3, 2]).peak == 1000
    assert graph.replay([0, 1, 2, 3]).exposed == 0.0
    assert graph.replay([0, 1, 3, 2]).exposed == 1.0
