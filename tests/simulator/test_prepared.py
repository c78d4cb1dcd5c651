"""What is prepared once and asked with other sizes answers what simulate does for them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.paper import DEVICE, GB, MB, US, close, machine, made, move, queue
from weft.collectives import collective
from weft.cost import gemm_grid
from weft.hardware import Kernels, Level
from weft.schedule import SELF, Cost, Kernel, Launch, Submit
from weft.simulator import Prepared, simulate

SMALL, LARGE = (2560, 2560, 1024), (10240, 5120, 512)
KERNELS = Kernels(local_bytes=64 << 10, register_bytes=512 << 10, all_gather_units=4)


def device(**changed):
    return replace(DEVICE, l2_bytes=1 << 30, kernels=KERNELS, **changed)


# Where a GEMM is held up by its units, by its memory, by its cache.
HELD_UP = {
    "units": device(memory_rate=1e15),
    "memory": device(memory_rate=10 * GB),
    "cache": replace(device(memory_rate=1e15), kernels=replace(KERNELS, l2_rate=100 * GB)),
}


def gemm(shape=SMALL):
    return Kernel("gemm", Cost("gemm", shape, "fp32"))


def pair(shape=SMALL, nbytes=10 * MB, units=4, mask=None):
    """On each of two ranks a GEMM and a kernel that sends to the other, launched before it."""
    host = queue("host", Submit(SELF, "stream1", 1), Submit(SELF, "stream0", 1))
    computes = queue("stream0", gemm(shape), units=mask)
    return made(2, {r: (host, computes, queue("stream1", sends(r, nbytes, units))) for r in (0, 1)})


def sends(rank, nbytes, units):
    return Launch(((move(rank, 1 - rank, nbytes),),), units, family="all_gather")


def grid_on(network, shape):
    return gemm_grid(shape, "fp32", network.require_device())


@pytest.mark.parametrize("held_up", HELD_UP)
@pytest.mark.parametrize("shape", [SMALL, LARGE])
def test_another_gemm_takes_what_it_takes_by_itself(held_up, shape):
    network = machine(1, device=HELD_UP[held_up])
    alone = partial(made, 1)
    prepared = Prepared(alone({0: (queue("stream0", gemm()),)}), network)
    have = prepared.seconds(grid=grid_on(network, shape), grid_units=100)
    want = simulate(alone({0: (queue("stream0", gemm(shape)),)}), network).seconds
    assert have == close(want)


@pytest.mark.parametrize("held_up", HELD_UP)
@pytest.mark.parametrize("units", [1, 4, 60])
@pytest.mark.parametrize("scale", [1, 25])
def test_a_pair_of_other_sizes_takes_what_simulate_says(held_up, units, scale):
    network = machine(2, device=HELD_UP[held_up])
    prepared = Prepared(pair(), network)
    want = simulate(pair(LARGE, scale * 10 * MB, units), network).seconds
    grid = grid_on(network, LARGE)
    assert prepared.seconds(scale, grid=grid, grid_units=100, units=units) == close(want)


@pytest.mark.parametrize("held_up", HELD_UP)
def test_a_gemm_may_be_confined_to_some_of_the_units(held_up):
    network = machine(2, device=HELD_UP[held_up])
    prepared = Prepared(pair(mask=(0, 100)), network)
    want = simulate(pair(LARGE, units=20, mask=(0, 70)), network).seconds
    have = prepared.seconds(grid=grid_on(network, LARGE), grid_units=70, units=20)
    assert have == close(want)


def test_a_launch_that_holds_all_units_leaves_the_gemm_until_it_ends():
    network = machine(2, device=HELD_UP["memory"])
    want = simulate(pair(LARGE, units=100), network).seconds
    found = Prepared(pair(), network).seconds(
        grid=grid_on(network, LARGE), grid_units=100, units=100
    )
    assert found == close(want)


def test_the_answer_to_a_question_does_not_depend_on_those_before():
    network = machine(2, device=HELD_UP["memory"])
    used, fresh = (Prepared(pair(), network) for _ in range(2))
    grids = [grid_on(network, shape) for shape in (SMALL, LARGE)]
    for units in (90, 30):
        used.seconds(7.0, grid=grids[1], grid_units=units, units=10)
    have, want = (
        each.seconds(2.0, grid=grids[0], grid_units=100, units=4) for each in (used, fresh)
    )
    assert have == want


def test_traffic_that_the_caller_has_at_hand_is_used():
    network = machine(1, device=HELD_UP["memory"])
    prepared = Prepared(made(1, {0: (queue("stream0", gemm()),)}), network)
    grid = grid_on(network, SMALL)
    rate = network.require_device().memory_rate
    launch = network.require_device().launch
    have = prepared.seconds(grid=grid, grid_units=100, traffic=lambda _: 10.0 * rate)
    assert have == close(10.0 + launch)


def engines(nbytes):
    """A host that hands an engine one copy, on a machine whose packets are 10 MB."""
    host = queue("host", Submit(0, "copy0", 1))
    return made(2, {0: (host, queue("copy0", move(0, 1, nbytes)))})


@settings(max_examples=25, derandomize=True)
@given(st.integers(1, 100))
def test_engines_start_once_a_packet_of_what_is_asked(megabytes):
    prepared = Prepared(engines(1 * MB), machine())
    want = simulate(engines(megabytes * MB), machine()).seconds
    assert prepared.seconds(megabytes) == close(want)
    packets = -(-megabytes // 10)
    # Control 1, doorbell 2, fetch 3, 4 for every packet; 10 GB/s.
    assert want == close((1 + 2 + 3 + 4 * packets + 100 * megabytes) * US)


@pytest.mark.parametrize("algorithm", ["direct", "dma"])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_a_collective_scales_with_its_bytes(algorithm, scale):
    network = machine(4)
    base, larger = (
        collective("all_gather", algorithm, num_ranks=4, nbytes=nbytes)
        for nbytes in (4 * MB, round(scale * 4 * MB))
    )
    assert Prepared(base, network).seconds(scale) == close(simulate(larger, network).seconds)


@pytest.mark.parametrize("units", [1, 2, 4])
def test_a_kernel_alone_takes_other_units(units):
    """Four units move 20 GB/s between two ranks, so one moves 5 and two fill the link."""
    free = replace(device(), launch=0.0)
    work = made(2, {0: (queue("stream0", sends(0, 10 * MB, 4)),)})
    rate = min(10, 5 * units)
    assert Prepared(work, machine(device=free)).seconds(units=units) == close(10 / rate * 1e-3)


@pytest.mark.parametrize("held_up", HELD_UP)
@pytest.mark.parametrize("mask", [None, (0, 40)])
def test_without_other_sizes_it_takes_what_simulate_says(held_up, mask):
    network = machine(2, device=HELD_UP[held_up])
    schedule = pair(LARGE, mask=mask)
    assert Prepared(schedule, network).seconds() == close(simulate(schedule, network).seconds)


def test_an_engine_that_reads_another_rank_asks_it_first():
    """The link's latency there and back, 50 us each, and 4 us to start."""
    network = replace(machine(2), levels=(Level("switch", 2, 10 * GB, 50 * US),))
    schedule = made(2, {0: (queue("copy0", move(1, 0, 10 * MB)),)})
    want = simulate(schedule, network).seconds
    assert want == close(104 * US + 1000 * US)
    assert Prepared(schedule, network).seconds() == close(want)
