"""What ranks draw: at rest, while kernels are there, and for what they do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.paper import (
    DEVICE,
    MB,
    POWER,
    hear,
    launch,
    machine,
    made,
    matmul,
    move,
    queue,
    tell,
    without_costs,
)
from weft.collectives import collective
from weft.hardware import Level, platform
from weft.simulator import Energy, energy, simulate

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


def test_joules_are_all_parts_together_and_watts_are_those_of_one_rank():
    found = Energy(seconds=0.5, num_ranks=4, idle=8.0, active=16.0, work=24.0)
    assert found.joules == 48.0
    assert found.watts == 48.0 / 4 / 0.5
    assert Energy(0.0, 4, 1.0, 1.0, 1.0).watts == 0.0


def test_a_rank_is_awake_while_kernels_are_there_and_rests_between_them():
    """A millisecond of work, a wait until the tenth, and two more; a kernel of another rank."""
    works = queue("stream0", matmul(1e-3), hear(), matmul(2e-3))
    other = (queue("nic0", move(1, 0, 100 * MB), tell(0)), queue("stream0", matmul(4e-3)))
    free = without_costs(WARM)
    found = drawn(made(2, {0: (works,), 1: other}), machine(device=free))
    assert found.seconds == pytest.approx(12e-3)
    assert found.active == pytest.approx(50.0 * (1e-3 + 2e-3 + 4e-3))
    assert found.idle == pytest.approx(2 * POWER.idle * 12e-3)
    # A hundred units for seven milliseconds, bytes read and written, and over a link.
    assert found.work == pytest.approx(100 * 7e-3 + 2 * 100 * MB * 1e-12 + 100 * MB * 1e-9)


@pytest.mark.parametrize("ranks", [1, 2])
def test_work_is_spent_where_it_is_done(ranks):
    """By row: a launch for its units, what it moves for its bytes; waits for nothing."""
    send = queue("stream0", launch((move(0, 1, 10 * MB), tell(1)), units=20))
    waits = {1: (queue("stream0", hear()),)} if ranks == 2 else {}
    timeline = simulate(made(2, {0: (send,), **waits}), machine(device=without_costs()))
    joules = {(s.rank, s.id): s.joules for s in timeline.spans()}
    assert joules[0, 0] == pytest.approx(20 * 1e-3)
    assert joules[0, 1] == pytest.approx(2 * 10 * MB * 1e-12 + 10 * MB * 1e-9)
    assert sum(joules.values()) == joules[0, 0] + joules[0, 1]


def test_links_are_paid_for_by_the_byte_once_on_every_link_of_the_way():
    """On a ring from 0 to 2 there are two, through a switch one."""
    ring = replace(machine(4, device=without_costs()), levels=(Level("ring", 4, 10e9),))
    mesh = replace(ring, levels=(Level("mesh", 4, 10e9),))
    work = made(4, {0: (queue("nic0", move(0, 2, 10 * MB)),)})
    memory = 2 * 10 * MB * 1e-12
    for network, links in ((ring, 2), (mesh, 1), (machine(4, device=without_costs()), 1)):
        assert simulate(work, network).total_joules == pytest.approx(
            memory + links * 10 * MB * 1e-9
        )
