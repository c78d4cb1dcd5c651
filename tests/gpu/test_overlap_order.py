"""Orders that hide collectives are valid, keep to a memory limit and expose no more than before."""

from __future__ import annotations

import random

import pytest

from benchmarks.overlap_bound import exposed_bound
from weft.gpu.overlap_graph import OverlapGraph, OverlapNode
from weft.gpu.overlap_order import OrderPolicy, best_order, ordered

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
@pytest.mark.parametrize(("room_ahead", "in_turn"), [(1 << 50, False), (1 << 50, True), (1, True)])
def test_a_list_schedule_never_runs_a_node_twice_or_before_its_inputs(
    seed, by_rank, room_ahead, in_turn
):
    graph = random_graph(seed, layers=20)
    order = ordered(graph, OrderPolicy(1.0, 64, by_rank, 1 << 50, room_ahead, in_turn))
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


@pytest.mark.parametrize("seed", range(40))
def test_no_order_exposes_less_than_the_bound(seed):
    graph, draw = random_graph(seed, layers=4), random.Random(seed)
    bound = exposed_bound(graph)
    assert bound <= graph.replay(best_order(graph, 1 << 50)).exposed + 1e-12
    for _ in range(50):
        left = [len(node.inputs) for node in graph.nodes]
        ready, order = [n for n, count in enumerate(left) if not count], []
        while ready:
            order.append(ready.pop(draw.randrange(len(ready))))
            for user in graph.users[order[-1]]:
                left[user] -= 1
                if not left[user]:
                    ready.append(user)
        assert bound <= graph.replay(order).exposed + 1e-12


def test_the_bound_is_reached_where_a_graph_has_one_order():
    nodes = (
        OverlapNode((), group="a", comm=3.0),
        OverlapNode((0,), waits_for=0),
        OverlapNode((1,), 2.0),
        OverlapNode((2,), group="a", comm=1.0),
        OverlapNode((3,), waits_for=3),
    )
    graph = OverlapGraph(nodes)
    assert exposed_bound(graph) == graph.replay(range(5)).exposed == 4.0


def backward(layers):
    """Return a chain of gradients of inputs; each layer's gradient of weights is reduced."""
    nodes, before = [OverlapNode((), 1.0)], 0
    for _ in range(layers):
        weights = len(nodes)
        nodes.append(OverlapNode((before,), 2.0, allocates=((weights, 1),), uses=(weights,)))
        nodes.append(OverlapNode((weights,), group="a", comm=0.5, uses=(weights,)))
        nodes.append(OverlapNode((weights + 1,), waits_for=weights + 1, uses=(weights,)))
        before = len(nodes)
        nodes.append(OverlapNode((weights - 1,), 2.0))
    last = len(nodes)
    nodes.append(OverlapNode((before,), group="a", comm=3.0))
    nodes.append(OverlapNode((last,), waits_for=last))
    return OverlapGraph(tuple(nodes))


def test_gradients_of_weights_are_postponed_behind_the_last_reduction():
    graph = backward(5)
    assert graph.replay(range(len(graph.nodes))).exposed == pytest.approx(5.5)
    order = best_order(graph, graph.replay(range(len(graph.nodes))).peak + 2)
    assert is_valid(graph, order)
    assert graph.replay(order).exposed == pytest.approx(0.5)
    assert exposed_bound(graph) == pytest.approx(0.5)
