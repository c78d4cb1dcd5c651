"""What the published figures of DMA engines say of the model, and the model of physics."""

from __future__ import annotations

from dataclasses import replace

import pytest

from validation.latte import targets
from validation.latte_prices import Rccl, by_engines, by_rccl, phase_shares
from validation.latte_tables import ALL_GATHER, PHASES, VARIANTS
from weft.hardware import platform

pytestmark = pytest.mark.thorough

MACHINE = platform("mi300x-8")


@pytest.fixture(scope="module")
def figures():
    return {target.name: target for target in targets()}


def test_the_tables_are_whole():
    assert len(PHASES) == 13
    assert all(98 <= sum(shares) <= 102 for shares in PHASES.values())  # they are rounded
    assert len(ALL_GATHER) == 14
    assert all(len(speeds) == len(VARIANTS) for speeds in ALL_GATHER.values())


def test_every_figure_is_as_near_as_it_must_be(figures):
    assert [name for name, target in figures.items() if target.met is False] == []
    assert sum(name.startswith("all-gather") and " over dma" in name for name in figures) == 70


def test_nothing_of_the_all_to_all_was_fitted_but_rccl(figures):
    table = [t for name, t in figures.items() if name.startswith("all-to-all") and "KiB," in name]
    assert table
    assert not any(target.fitted for target in table)


def machine(**changed):
    device = MACHINE.require_device()
    return replace(MACHINE, device=replace(device, dma=replace(device.require_dma(), **changed)))


def all_gather(algorithm, nbytes, network=MACHINE):
    return by_engines("all_gather", algorithm, nbytes, network).seconds


@pytest.mark.parametrize(
    ("changed", "small", "large"),
    [
        ({"doorbell": 2e-6}, ("dma", "dma-b2b"), ()),
        ({"control": 1e-6}, ("dma", "dma-b2b"), ()),
        ({"fetch": 5e-6}, ("dma-b2b",), ()),
        ({"drain": 5e-6}, ("dma+prelaunch", "dma-b2b+prelaunch"), ()),
        ({"start": 2e-6}, ("dma-b2b+prelaunch",), ()),
        ({"sync": 9e-6}, ("dma+prelaunch", "dma-b2b+prelaunch"), ()),
        ({"observe": 1e-6}, ("dma+prelaunch", "dma"), ()),
        ({"paired_rate": 20e9}, (), ("dma-bcst",)),
        ({"engine_rate": 20e9}, (), ("dma", "dma-b2b")),
    ],
)
def test_what_costs_more_takes_longer_where_it_is_paid(changed, small, large):
    network = machine(**changed)
    for algorithm in small:
        assert all_gather(algorithm, 8192, network) > 1.05 * all_gather(algorithm, 8192)
    for algorithm in large:
        assert all_gather(algorithm, 1 << 30, network) > 1.2 * all_gather(algorithm, 1 << 30)


def test_prelaunching_takes_the_hosts_part_out():
    network = machine(doorbell=20e-6, control=20e-6, fetch=20e-6)
    for algorithm in ("dma+prelaunch", "dma-bcst+prelaunch", "dma-b2b+prelaunch"):
        assert all_gather(algorithm, 8192, network) == all_gather(algorithm, 8192)


def test_slower_links_make_large_collectives_slower_and_copies_longer():
    levels = tuple(replace(level, rate=level.rate / 2) for level in MACHINE.levels)
    slow = replace(MACHINE, levels=levels)
    assert all_gather("dma", 1 << 30, slow) == pytest.approx(
        2 * all_gather("dma", 1 << 30), rel=0.05
    )
    assert phase_shares(1 << 20, slow)[2] > phase_shares(1 << 20, MACHINE)[2]
    assert by_rccl("all_gather", 1 << 30, slow).seconds > 1.5 * all_gather("dma", 1 << 30)


def test_what_rccl_pays_on_the_host_is_paid_once_a_call():
    plain, late = (
        by_rccl("all_to_all", 8192, MACHINE, Rccl(launch=launch)).seconds for launch in (0.0, 9e-6)
    )
    assert late == pytest.approx(plain + 9e-6)
    fewer = by_rccl("all_gather", 8192, MACHINE, Rccl(launch=9e-6)).seconds
    assert late == pytest.approx(fewer + 14 * Rccl().send, rel=0.01)
