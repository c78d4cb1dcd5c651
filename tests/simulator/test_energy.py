from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.paper import DEVICE, MB, POWER, launch, machine, made, move, queue, tell
from weft.collectives import collective
from weft.hardware import platform
from weft.simulator import energy, simulate

WARM = replace(DEVICE, power=replace(POWER, active=50.0))


def drawn(schedule, network):
    return energy(simulate(schedule, network), network)


def test_all_ranks_idle_from_the_start_to_the_end():
    found = drawn(made(2, {0: (queue("copy0", move(0, 1, 10 * MB)),)}), machine(device=WARM))
    assert found.idle == pytest.approx(2 * POWER.idle * found.seconds)
    assert found.active == 0  # engines leave the clocks at rest
    assert found.joules == found.idle + found.work
    assert found.watts == pytest.approx(found.joules / found.seconds / 2)


def test_a_kernel_wakes_its_rank_once_whatever_its_streams():
    lanes = (move(0, 1, 10 * MB),)
    one = made(2, {0: (queue("stream0", launch(lanes, units=10)),)})
    both = made(2, {0: tuple(queue(f"stream{n}", launch(lanes, units=10)) for n in range(2))})
    for schedule in (one, both):
        found = drawn(schedule, machine(device=WARM))
        assert found.active == pytest.approx(50.0 * found.seconds, rel=0.01)


def test_ranks_that_are_only_represented_count():
    network = platform("mi300x-8")
    schedule = collective("all_gather", "direct", num_ranks=8, nbytes=8 << 20)
    collapsed, whole = (
        energy(simulate(schedule, network, collapse=collapse), network)
        for collapse in (True, False)
    )
    assert collapsed.joules == pytest.approx(whole.joules, rel=1e-9)


def test_nothing_draws_nothing():
    found = drawn(made(2, {0: (queue("stream0", tell(0)),)}), machine(device=WARM))
    assert (found.joules, found.watts) == (0, 0)


def test_engines_draw_less_than_kernels_for_the_same_bytes():
    network = platform("mi300x-8")
    watts = {
        name: drawn(collective("all_gather", name, num_ranks=8, nbytes=1 << 30), network).watts
        for name in ("direct", "dma", "dma-bcst")
    }
    assert watts["dma-bcst"] < watts["dma"] < 0.75 * watts["direct"]
