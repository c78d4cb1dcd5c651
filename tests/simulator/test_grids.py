"""GEMMs on units, overlapped with launches and copies: times worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.paper import DEVICE, GB, MB, launch, machine, made, move, queue, spans
from weft.cost import gemm_grid
from weft.cost.gemm import Grid
from weft.hardware import Kernels
from weft.hardware.device import Power
from weft.schedule import SELF, Cost, Kernel, Submit
from weft.simulator import simulate

# Caches that hold everything, transfers that feel no load, slots in strict order of launches.
CALM = Kernels(
    clock_coupling=0.0,
    local_bytes=64 << 10,
    register_bytes=512 << 10,
    l2_rate=1e15,
    live_steps=0.0,
    overcommit=0.0,
    load_latency=0.0,
    dispatch_share=0.0,
    staging=0.0,
)
DEV = replace(DEVICE, launch=0.0, host_launch=1e-9, memory_rate=1e15, kernels=CALM)
GEMM = (2560, 2560, 1024)  # 100 tiles of 256 x 256
TILE = gemm_grid(GEMM, "fp32", DEV).tile_seconds


def close(seconds):
    return pytest.approx(seconds, rel=1e-4, abs=1e-8)


def gemm(rows=2560, family="gemm-stealing"):
    return Kernel("gemm", Cost(family, (rows, 2560, 1024), "fp32"))


def first_then(one, two, **masks):
    """Two streams, launched one after the other by the host."""
    submits = (Submit(SELF, "stream0", 1), Submit(SELF, "stream1", 1))
    streams = (
        queue("stream0", one, units=masks.get("first")),
        queue("stream1", two, units=masks.get("second"), priority=masks.get("priority", 0)),
    )
    return made(2, {0: (queue("host", *submits), *streams)})


def busy(seconds, units):
    """A launch that holds units so long."""
    return launch((move(0, 1, round(seconds * 10 * GB)),), units=units)


def ends(schedule, device=DEV):
    found = spans(schedule, machine(device=device))
    return {name: found[0, name, 0] for name in ("stream0", "stream1")}


@pytest.mark.parametrize(("rows", "waves"), [(2560, 1), (2816, 2), (5120, 2)])
def test_a_gemm_takes_its_waves(rows, waves):
    work = made(1, {0: (queue("stream0", gemm(rows)),)})
    assert simulate(work, machine(1, device=DEV)).seconds == close(waves * TILE)


def test_a_mask_leaves_fewer_units_and_more_waves():
    work = made(1, {0: (queue("stream0", gemm(), units=(0, 99)),)})
    assert simulate(work, machine(1, device=DEV)).seconds == close(2 * TILE)


def test_a_launch_behind_a_gemm_waits_for_its_last_wave():
    # 1000 tiles and 50: ten waves, then one that leaves fifty units free.
    found = ends(first_then(gemm(26880), busy(TILE, 50)))
    assert found["stream1"][0] == close(10 * TILE)
    assert found["stream0"][1] == close(11 * TILE)


def test_a_share_of_the_slots_admits_it_sooner():
    shared = replace(DEV, kernels=replace(CALM, dispatch_share=0.25))
    found = ends(first_then(gemm(25600), busy(TILE, 50)), shared)
    assert found["stream1"][0] == close(2 * TILE)  # two hundred slots, a quarter of them


def test_a_higher_priority_takes_the_next_wave():
    found = ends(first_then(gemm(25600), busy(TILE, 50), priority=1))
    assert found["stream1"][0] == close(TILE)


def test_a_launch_before_a_gemm_holds_its_units_and_returns_them():
    # 10 x 100 tiles; 50 units for four tiles' time: 200 tiles, then 800 on 100 units.
    found = ends(first_then(busy(4 * TILE, 50), gemm(25600)))
    assert found["stream0"] == (close(0), close(4 * TILE))
    assert found["stream1"][1] == close(12 * TILE)


def test_workgroups_with_lists_of_tiles_wait_for_a_unit_with_all_of_their_list():
    # 100 lists of 10 tiles: 50 start at once, the others when the launch returns its units.
    found = ends(first_then(busy(4 * TILE, 50), gemm(25600, "gemm-lists")))
    assert found["stream1"][1] == close(14 * TILE)


def test_watts_of_a_copy_are_taken_from_the_clock_of_a_product():
    # The copy moves 10 GB/s for 1 ms: 10 J/GB of memory and 2 x 5 J/GB of links are 200 of 1000 W.
    power = Power(0.0, 10.0, 0.0, 10e-9, 5e-9)
    calm = replace(CALM, clock_coupling=1.0)
    hot = replace(DEV, memory_rate=1e15, power=power, kernels=calm)
    work = made(2, {0: (queue("stream0", gemm(256000)), queue("nic0", move(0, 1, 10 * MB)))})
    cold = replace(hot, kernels=replace(calm, clock_coupling=0.0))
    (_, slowed), (_, alone) = (
        spans(work, machine(device=each))[0, "stream0", 0] for each in (hot, cold)
    )
    assert slowed - alone == pytest.approx(0.2 * 1e-3, rel=0.05)


def test_units_that_a_launch_holds_draw_their_share_of_the_watts():
    """A launch holds 20 of 100 units; what those do not draw pays for its traffic."""
    power, kernels = Power(0.0, 10.0, 0.0, 10e-9, 5e-9), replace(CALM, clock_coupling=1.0)
    work = first_then(busy(1e-3, 20), gemm(256000))
    took = []
    for share in (0.0, 0.5, 1.0):
        drawing = replace(kernels, held_watts=share)
        hot = replace(DEV, memory_rate=1e15, power=power, kernels=drawing)
        took.append(ends(work, hot)["stream1"][1])
    cold = replace(hot, kernels=replace(kernels, clock_coupling=0.0))
    assert took[0] == pytest.approx(ends(work, cold)["stream1"][1])
    assert took[0] < took[1] < took[2]


def test_masks_that_do_not_touch_do_not_wait():
    masks = {"first": (0, 90), "second": (90, 100)}
    found = ends(first_then(gemm(25600), busy(4 * TILE, 10), **masks))
    assert found["stream1"] == (close(0), close(4 * TILE))
    assert found["stream0"][1] == close(12 * TILE)


def test_load_slows_engines_by_what_the_memory_is_busy():
    traffic = 1e6 * gemm_grid(GEMM, "fp32", DEV).traffic_on(100, DEV) / TILE / 1e6
    loaded = replace(DEV, memory_rate=4 * traffic, kernels=replace(CALM, load_latency=2.0))
    work = made(2, {0: (queue("stream0", gemm(256000)), queue("copy0", move(0, 1, 10 * MB)))})
    (_, end) = spans(work, machine(device=loaded))[0, "copy0", 0]
    plain = spans(work, machine(device=DEV))[0, "copy0", 0][1]
    before = 4e-6 + 0.0
    assert (end - before) / (plain - before) == pytest.approx(1 + 2.0 / 4, rel=0.02)


def test_requests_in_flight_divide_a_memory_that_is_full():
    # The GEMM alone asks for twice what there is, the copy for a tenth of it.
    traffic = gemm_grid(GEMM, "fp32", DEV).traffic_on(100, DEV) / TILE
    full = replace(DEV, memory_rate=traffic / 2)
    fair = made(2, {0: (queue("stream0", gemm(256000)), queue("nic0", move(0, 1, 10 * MB)))})
    greedy = replace(full, kernels=replace(CALM, overcommit=1e6))
    (_, served) = spans(fair, machine(device=full))[0, "nic0", 0]
    (_, starved) = spans(fair, machine(device=greedy))[0, "nic0", 0]
    assert served == close(1e-3)
    assert starved > 2 * served


@pytest.mark.parametrize("pieces", [1, 4])
def test_tiles_in_pieces_are_the_same_work(pieces):
    grid = Grid(512, 256, 64, 2, 2, (128, 128), 3e-6, 1, pieces)
    count, each = grid.handed_out
    assert count == 8 * pieces
    assert count * each == pytest.approx(8 * 3e-6)
