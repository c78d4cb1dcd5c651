"""GEMMs that share memory, caches and transfers: what they take of each, and what is left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulator.paper import (
    DEVICE,
    GB,
    launch,
    machine,
    made,
    matmul,
    move,
    queue,
    spans,
    without_costs,
)
from weft.cost import gemm_grid
from weft.hardware import Kernels, Level, Platform
from weft.schedule import Cost, Kernel, Slice
from weft.simulator import byte_weight, simulate
from weft.simulator.grids import traffic_weights

MS = 1e-3
# Caches that hold everything, transfers that feel no load.
STEADY = Kernels(
    local_bytes=64 << 10,
    register_bytes=512 << 10,
    l2_rate=1e15,
    live_steps=0.0,
    overcommit=0.0,
    load_latency=0.0,
    staging=0.0,
)
DEV = replace(without_costs(), memory_rate=1e15, l2_bytes=1 << 40, kernels=STEADY)
SHAPE = (25600, 2560, 1024)  # 1000 tiles of 256 x 256: ten waves on a hundred units
GRID = gemm_grid(SHAPE, "fp32", DEV, "gemm-stealing")
SECONDS = GRID.seconds(100)
TRAFFIC = GRID.traffic_on(100, DEV)


def close(seconds):
    return pytest.approx(seconds, rel=1e-6)


def gemm(shape=SHAPE, family="gemm-stealing"):
    return Kernel("gemm", Cost(family, shape, "fp32"))


def device(**changed):
    """The calm device with other rates, or other kernels."""
    names = {name for name in changed if hasattr(STEADY, name)}
    kernels = replace(STEADY, **{name: changed.pop(name) for name in names})
    return replace(DEV, kernels=kernels, **changed)


def seconds_of(dev, *queues, num_ranks=1, rate=10 * GB):
    work = made(num_ranks, {0: queues or (queue("stream0", gemm()),)})
    return simulate(work, machine(num_ranks, rate=rate, device=dev)).seconds


def test_a_gemm_is_as_slow_as_the_slowest_of_its_units_its_memory_and_its_cache():
    inner = GRID.inner_traffic()
    assert seconds_of(DEV) == close(SECONDS)
    assert seconds_of(device(memory_rate=TRAFFIC / SECONDS / 2)) == close(2 * SECONDS)
    assert seconds_of(device(l2_rate=inner / SECONDS / 3)) == close(3 * SECONDS)
    both = device(memory_rate=TRAFFIC / SECONDS / 2, l2_rate=inner / SECONDS / 3)
    assert seconds_of(both) == close(3 * SECONDS)


@pytest.mark.parametrize("overcommit", [0.0, 1.0, 50.0])
def test_how_a_gemm_is_counted_does_not_change_what_it_takes_alone(overcommit):
    greedy = device(memory_rate=TRAFFIC / SECONDS / 2, overcommit=overcommit)
    assert seconds_of(greedy) == close(2 * SECONDS)


def test_a_mask_leaves_the_traffic_of_fewer_units():
    """Fewer tiles in flight share fewer panels, so the same GEMM moves more."""
    fewer = GRID.traffic_on(10, DEV)
    assert fewer > 1.5 * TRAFFIC
    slow = device(memory_rate=TRAFFIC / SECONDS / 1000)
    masked = queue("stream0", gemm(), units=(0, 10))
    assert seconds_of(slow, masked) == close(fewer / TRAFFIC * 1000 * SECONDS)


@pytest.mark.parametrize("reads", [(), (Slice(1, "x", 0, 1),)], ids=["here", "elsewhere"])
def test_a_launch_that_takes_units_changes_the_traffic_of_what_is_left(reads):
    """Wherever an operand comes from: what is read over a link is a demand before the others."""
    held = launch((move(0, 1, 10**15),), units=90)
    slow = device(memory_rate=TRAFFIC / SECONDS / 1000, unit_copy_rate=1.0)
    queues = queue("stream1", held), queue("stream0", replace(gemm(), reads=reads))
    have = spans(made(2, {0: queues}), machine(2, device=slow))[0, "stream0", 0][1]
    assert have == close(GRID.traffic_on(10, DEV) / TRAFFIC * 1000 * SECONDS)


def test_weights_are_the_traffic_on_each_number_of_units_by_the_piece():
    one = device(l2_slices=1)  # so that two units share what one of them reads
    table = traffic_weights(GRID, 20, machine(1, device=one), size=1000.0)
    assert len(table) == 21
    want = [GRID.traffic_on(max(1, units), one) / 1000.0 for units in range(21)]
    assert table == pytest.approx(np.array(want), rel=1e-12)
    assert table[0] == table[1] > table[2]


def test_two_ranks_have_grids_and_memories_of_their_own():
    slow = device(memory_rate=TRAFFIC / SECONDS / 10)
    small = (2560, 2560, 1024)
    work = {0: (queue("stream0", gemm()),), 1: (queue("stream0", gemm(small), gemm(small)),)}
    found = spans(made(2, work), machine(2, device=slow))
    assert found[0, "stream0", 0][1] == close(10 * SECONDS)
    one = gemm_grid(small, "fp32", DEV, "gemm-stealing").traffic_on(100, DEV) / slow.memory_rate
    assert found[1, "stream0", 0][1] == close(one)
    assert found[1, "stream0", 1][1] == close(2 * one)


@pytest.mark.parametrize(
    ("size", "units", "overcommit", "weight"),
    [
        (2, 100, 1.0, 10.0),  # memory 100 GB/s, a link 10: ten transfers would fill it
        (2, 100, 2.0, 20.0),
        (6, 100, 1.0, 50.0),  # five peers have 2 GB/s each
        (2, 50, 1.0, 5.0),  # half of the units have half of the requests
        (1, 100, 1.0, 10.0),
        (2, 100, 0.01, 1.0),  # never less than a copy's byte
    ],
)
def test_a_gemm_weighs_as_many_transfers_as_would_fill_what_it_asks_for(
    size, units, overcommit, weight
):
    asked = replace(DEVICE, kernels=replace(STEADY, overcommit=overcommit))
    assert byte_weight(machine(size, device=asked), units) == close(weight)


def test_only_the_innermost_level_says_what_a_transfer_has_in_flight():
    levels = (Level("switch", 2, 10 * GB), Level("switch", 8, 1 * GB))
    asked = replace(DEVICE, kernels=replace(STEADY, overcommit=1.0))
    assert byte_weight(Platform("two", device=asked, levels=levels), 100) == close(10.0)


def test_a_full_memory_is_divided_by_requests_in_flight():
    """A GEMM of weight 4 and a copy: a fifth of 100 GB/s is left to the copy."""
    # TRAFFIC takes ten times as long as its units, so memory is full.
    rate = TRAFFIC / SECONDS / 10
    dev = device(memory_rate=rate, overcommit=2.0)
    network = machine(2, rate=rate / 2, device=dev)
    nbytes = round(rate / 5 * SECONDS)
    work = made(2, {0: (queue("stream0", gemm()), queue("nic0", move(0, 1, nbytes)))})
    found = spans(work, network)
    assert byte_weight(network, 100) == close(4.0)
    assert found[0, "nic0", 0][1] == close(SECONDS)
    # The GEMM lost a fifth of the memory that long.
    assert found[0, "stream0", 0][1] == close(10 * SECONDS + SECONDS / 5)


UNITS = 90
BUSY = GRID.seconds(UNITS)
COPY = round(BUSY / 10 * 10 * GB)  # a tenth of the GEMM's time at 10 GB/s


def loaded(memory=1e-9, cache=1e-9, stretch=1.0):
    """A device that the GEMM on its 90 units keeps busy by these parts."""
    return device(
        memory_rate=GRID.traffic_on(UNITS, DEV) / BUSY / memory,
        l2_rate=GRID.inner_traffic() / BUSY / cache,
        load_latency=stretch,
    )


def next_to_a_gemm(transfer, dev, rank=0):
    """How long a transfer takes next to the GEMM of rank 0, in what it takes alone."""
    computes = queue("stream0", gemm(), units=(0, UNITS))
    queues = {0: (computes,)}
    queues[rank] = (*queues.get(rank, ()), transfer)
    found = spans(made(3, queues), machine(3, device=dev))
    return found[rank, transfer.name, 0][1] / (BUSY / 10)


ENGINE = queue("copy0", move(0, 1, COPY))
KERNEL = queue("stream1", launch((move(0, 1, COPY),), units=10), units=(90, 100))


@pytest.mark.parametrize("stretch", [0.0, 1.0, 2.0])
def test_an_engine_is_slowed_by_the_load_of_the_memory_alone(stretch):
    assert next_to_a_gemm(ENGINE, loaded(memory=0.5, stretch=stretch)) == close(1 + 0.5 * stretch)
    assert next_to_a_gemm(ENGINE, loaded(cache=0.5, stretch=stretch)) == close(1)


@pytest.mark.parametrize(("memory", "cache"), [(0.5, 1e-9), (1e-9, 0.25), (0.5, 0.25)])
def test_units_that_move_are_slowed_by_the_load_of_memory_and_cache(memory, cache):
    found = next_to_a_gemm(KERNEL, loaded(memory, cache))
    assert found == close(1 + memory + cache)


def test_a_network_card_feels_no_load():
    card = queue("nic0", move(0, 1, COPY))
    assert next_to_a_gemm(card, loaded(memory=0.5, cache=0.5)) == close(1)


@pytest.mark.parametrize("name", ["copy0", "stream1"])
def test_transfers_of_other_ranks_feel_no_load(name):
    sends = move(2, 1, COPY)
    transfer = queue(name, sends if name == "copy0" else launch((sends,), units=10))
    assert next_to_a_gemm(transfer, loaded(memory=0.5, cache=0.5), rank=2) == close(1)


def test_a_second_grid_on_another_rank_slows_its_own_transfers():
    """Both ranks compute and send; each feels its own GEMM once."""
    computes = queue("stream0", gemm(), units=(0, UNITS))
    work = {
        rank: (computes, queue("copy0", move(rank, 2, COPY // 2)), queue("copy1"))
        for rank in range(2)
    }
    network = machine(3, rate=20 * GB, device=loaded(memory=0.5))
    found = spans(made(3, work), network)
    for rank in range(2):
        assert found[rank, "copy0", 0][1] == close(1.5 * BUSY / 20)


def test_a_gemm_spends_unit_seconds_and_traffic_whatever_holds_it_up():
    power = DEV.power
    unit_seconds = GRID.tiles * GRID.tile_seconds
    want = unit_seconds * power.unit + TRAFFIC * power.memory_byte
    for slow in (1, 5):
        dev = device(memory_rate=TRAFFIC / SECONDS / slow)
        found = simulate(made(1, {0: (queue("stream0", gemm()),)}), machine(1, device=dev))
        assert found.total_joules == close(want)


def test_a_gemm_in_a_lane_is_a_kernel_on_the_units_of_its_launch():
    """In a lane it is a roofline: its flops and bytes, not its tiles."""
    cost = replace(matmul(1 * MS, units=10).cost, family="gemm", shape=(256, 256, 64))
    inside = queue("stream0", launch((Kernel("gemm", cost),), units=10))
    assert seconds_of(DEV, inside) == close(1 * MS)


def test_a_family_of_gemms_without_a_shape_is_a_kernel_like_any_other():
    cost = replace(matmul(1 * MS).cost, family="gemm")
    assert seconds_of(DEV, queue("stream0", Kernel("gemm", cost))) == close(1 * MS)
