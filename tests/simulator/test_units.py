"""Units: how many a collective takes, what one of them moves, who runs on which."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulator.paper import (
    DEVICE,
    GB,
    MB,
    close,
    launch,
    machine,
    made,
    matmul,
    move,
    queue,
    spans,
    without_costs,
)
from weft.hardware import Kernels, Level, Platform
from weft.schedule import Cost, Kernel, Launch
from weft.simulator import collective_units, simulate, unit_rate

MS = 1e-3
FREE = without_costs()
KNOWN = replace(FREE, kernels=Kernels(all_gather_units=4, staging=0.0))


def gather(*lanes, units=None, family="all_gather"):
    return Launch(lanes, units, family=family)


def on(device, *rates):
    levels = tuple(Level("switch", 2, rate) for rate in rates)
    return Platform("paper", device=device, levels=levels)


@pytest.mark.parametrize(
    ("rates", "units"),
    [
        ((10 * GB,), 10),
        ((10.5 * GB,), 11),  # ten would leave the link half a unit short
        ((0.1 * GB,), 1),
        ((1000 * GB,), 100),  # all there are
        ((2 * GB, 30 * GB), 30),
        ((30 * GB, 2 * GB), 30),
        ((), 1),
    ],
)
def test_a_collective_takes_the_units_that_fill_its_fastest_links(rates, units):
    assert collective_units(on(FREE, *rates)) == units
    assert collective_units(on(FREE, *rates), "all_gather") == units


def test_where_it_is_known_how_many_fill_the_links_it_takes_those():
    assert collective_units(on(KNOWN, 10 * GB), "all_gather") == 4
    assert collective_units(on(KNOWN, 10 * GB), "all_to_all") == 10
    many = replace(KNOWN, kernels=Kernels(all_gather_units=500))
    assert collective_units(on(many, 10 * GB), "all_gather") == DEVICE.units


def test_a_unit_of_unknown_kernels_moves_what_a_unit_copies():
    assert unit_rate(on(KNOWN, 10 * GB), "") == DEVICE.unit_copy_rate
    assert unit_rate(on(KNOWN, 10 * GB), "all_to_all") == DEVICE.unit_copy_rate


@pytest.mark.parametrize("size", [2, 3, 5, 9])
def test_known_units_together_move_the_chunks_of_all_peers_and_their_own(size):
    """When n - 1 chunks fill the links the kernel moves n of them, its own inside."""
    network = machine(size, rate=(size - 1) * GB, device=KNOWN)
    assert 4 * unit_rate(network, "all_gather") == close(size * GB)


def test_on_a_machine_of_one_rank_a_unit_has_its_share_of_the_rate():
    assert unit_rate(machine(1, rate=8 * GB, device=KNOWN), "all_gather") == close(2 * GB)


def test_the_innermost_level_is_what_known_units_fill():
    assert unit_rate(on(KNOWN, 10 * GB, 1 * GB), "all_gather") == close(5 * GB)


@pytest.mark.parametrize(("units", "milliseconds"), [(1, 2), (2, 1), (4, 1), (None, 1)])
def test_a_launch_of_a_known_kernel_moves_by_the_rate_of_its_units(units, milliseconds):
    """Two ranks, 10 GB/s: four units move 20 GB/s, one of them 5, two fill the link."""
    work = made(2, {0: (queue("stream0", gather((move(0, 1, 10 * MB),), units=units)),)})
    assert simulate(work, machine(2, device=KNOWN)).seconds == close(milliseconds * MS)


def test_each_launch_moves_by_the_rate_of_its_own_kernel():
    queues = (
        queue("stream0", gather((move(0, 1, 10 * MB),), units=1)),
        queue("stream1", launch((move(0, 2, 10 * MB),), units=1)),
        queue("stream2", gather((move(0, 3, 10 * MB),), units=1, family="all_to_all")),
    )
    found = spans(made(4, {0: queues}), machine(4, rate=30 * GB, device=KNOWN))
    # Four units fill 30 GB/s and move a third more: 10 GB/s each.
    assert found[0, "stream0", 0][1] == close(1 * MS)
    assert found[0, "stream1", 0][1] == close(10 * MS)
    assert found[0, "stream2", 0][1] == close(10 * MS)


def test_ranks_have_units_of_their_own():
    half = launch((move(0, 0, 10 * MB),), units=60)
    work = made(2, {r: (queue("stream0", half),) for r in range(2)})
    found = spans(work, machine(2, device=FREE))
    assert found[0, "stream0", 0] == found[1, "stream0", 0]


def test_a_kernel_is_slowed_on_the_rank_whose_units_are_held_and_on_no_other():
    """The rank between them has no commands, so ranks and pools are numbered differently."""
    hold = queue("stream0", launch((move(2, 0, 20 * MB),), units=50))
    kernel = queue("stream1", matmul(1 * MS))
    found = spans(made(3, {0: (kernel,), 2: (hold, kernel)}), machine(3, device=FREE))
    assert found[0, "stream1", 0][1] == close(1 * MS)
    assert found[2, "stream1", 0][1] == close(2 * MS)


def test_a_lane_that_computes_and_one_that_copies_share_the_units_of_their_launch():
    """Both want all ten units for a millisecond."""
    lanes = ((matmul(1 * MS, units=10),), (move(0, 1, 10 * MB),))
    work = made(2, {0: (queue("stream0", launch(*lanes, units=10)),)})
    assert simulate(work, machine(2, device=FREE)).seconds == close(2 * MS)


def test_a_kernel_in_a_lane_does_not_run_on_units_outside():
    """A bare kernel next to it has all units that the launch does not hold."""
    inside = queue("stream0", launch((matmul(1 * MS, units=20),), units=20))
    other = queue("stream1", matmul(1 * MS, units=80))
    found = spans(made(1, {0: (inside, other)}), machine(1, device=FREE))
    assert found[0, "stream0", 0][1] == found[0, "stream1", 0][1] == close(1 * MS)


@settings(max_examples=40, derandomize=True)
@given(units=st.integers(1, 99), held=st.integers(1, 100))
def test_a_kernel_takes_its_work_over_the_units_it_may_use(units, held):
    masked = queue("stream0", matmul(1 * MS), units=(0, units))
    hold = queue("stream1", launch((move(0, 1, 1000 * MB),), units=held))
    alone = simulate(made(1, {0: (masked,)}), machine(1, device=FREE)).seconds
    assert alone == close(100 / units * MS)
    fast = machine(2, rate=1e-3 * GB, device=FREE)
    end = spans(made(2, {0: (hold, masked)}), fast)[0, "stream0", 0][1]
    assert end == close(100 / min(units, 100 - held) * MS if held < 100 else 1000 + 0.1 / units)


@pytest.mark.parametrize("turned", [False, True])
def test_computing_and_copying_lanes_of_a_known_kernel_share_its_units_in_any_order(turned):
    """The product has all units for a millisecond, then 10 MB fill the link for another."""
    lanes = [(move(0, 1, 10 * MB),), (matmul(1 * MS, 4),)]
    schedule = made(2, {0: (queue("stream0", gather(*(lanes[::-1] if turned else lanes))),)})
    assert simulate(schedule, on(KNOWN, 10 * GB)).seconds == pytest.approx(2 * MS, rel=1e-6)


def test_one_device_alone_has_a_collective_kernel_and_a_product():
    alone = Platform("alone", device=KNOWN, levels=())
    assert unit_rate(alone, "all_gather") == KNOWN.unit_copy_rate
    product = Kernel("gemm", Cost("gemm", (1024, 1024, 1024), "fp32"))
    with_link = made(1, {0: (queue("stream0", product),)})
    assert 0 < simulate(with_link, alone).seconds < 1.0
