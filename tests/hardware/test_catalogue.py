"""Every machine of the catalogue: plausible numbers, each with a source."""

import math
from dataclasses import replace

import pytest

from weft.errors import PlatformError
from weft.hardware import BASES, Platform, platform, platform_names
from weft.hardware.files import CATALOGUE
from weft.hardware.kernel_fits import fitted_devices

EXPECTED = [
    "a100-8",
    "a100-pcie-8",
    "a40-8",
    "b200-8",
    "b300-8",
    "cpu",
    "gb200-nvl72",
    "gb300-nvl72",
    "h100-8",
    "h100-nvl-8",
    "h100-pcie-8",
    "h20-8",
    "h200-8",
    "h800-8",
    "l4-8",
    "l40s-8",
    "l40s-8-nop2p",
    "mi210-4",
    "mi250x-8",
    "mi300x-8",
    "mi325x-8",
    "mi350x-8",
    "mi355x-8",
    "rtx-pro-6000-8",
    "t4-8",
    "v100-16",
    "v100-8",
]

# Shares in percent of control, schedule, copy and sync in one copy of KB (arXiv 2511.06605).
PHASES = {
    1: (5, 31, 29, 35),
    4: (5, 30, 30, 36),
    16: (4, 30, 33, 33),
    64: (4, 23, 46, 27),
    128: (7, 20, 51, 22),
    256: (3, 17, 62, 18),
    512: (2, 13, 72, 13),
    1024: (1, 10, 79, 10),
    2048: (1, 5, 89, 5),
    4096: (1, 3, 93, 3),
    8192: (0, 1, 97, 1),
    16384: (0, 1, 98, 1),
    65536: (0, 0, 100, 0),
}


@pytest.fixture(params=platform_names())
def machine(request: pytest.FixtureRequest) -> Platform:
    return platform(request.param)


def test_the_machines_of_the_design_are_there():
    assert platform_names() == tuple(EXPECTED)


def test_every_device_file_is_used_by_a_node():
    used = {platform(name).require_device().name for name in platform_names()}
    assert used == {path.stem for path in (CATALOGUE / "devices").glob("*.toml")}


def test_a_device_that_is_like_another_is_like_one_that_is_measured_or_priced_by_its_datasheet():
    likes = {platform(name).require_device().like for name in platform_names()} - {""}
    roots = {name for name in likes if name not in (*fitted_devices(), "mi300x")}
    assert roots == set()


def test_a_device_that_extends_another_is_like_it_unless_it_says_otherwise():
    assert platform("h20-8").require_device().like == "h100"
    assert platform("t4-8").require_device().like == "a100"  # what V100 is like
    assert platform("h100-8").require_device().like == ""


def test_a_machine_has_the_name_of_its_file(machine):
    assert machine.name in platform_names()
    assert machine.title
    assert machine.device.title


def test_every_number_has_a_basis_and_a_source(machine):
    entries = list(machine.entries())
    assert len(entries) > 30
    assert {entry.key for entry in entries} == machine.sources.keys()
    assert all(entry.basis in BASES and entry.source.strip() for entry in entries)


def test_numbers_are_positive_and_finite(machine):
    device = machine.device
    positive = [device.units, device.unit_grain, device.unit_copy_rate, device.memory_rate]
    positive += [device.memory_bytes, device.l2_bytes, device.last_level_bytes]
    positive += [device.launch, device.host_launch, device.signal, device.release]
    positive += [device.dma.num_engines, device.dma.engine_rate, device.dma.packet_bytes]
    positive += [device.dma.control, device.dma.doorbell, device.dma.fetch, device.dma.sync]
    positive += [machine.host.memory_rate, machine.host.link_rate, machine.host.link_latency]
    positive += [value for level in machine.levels for value in (level.rate, level.latency)]
    positive += [machine.nic.rate, machine.nic.latency, device.power.idle, device.power.unit]
    assert all(0 < value < math.inf for value in positive)


def test_nothing_achieves_more_than_its_rating(machine):
    device = machine.device
    assert device.memory_rate <= device.memory_rated
    assert all(flops.achieved <= flops.rated for flops in device.flops.values())
    assert all(level.rate <= level.rated for level in machine.levels if level.rated)
    assert device.unit_copy_rate * device.units >= max(level.rate for level in machine.levels)
    assert device.last_level_bytes >= device.l2_bytes


def test_a_device_multiplies_at_least_in_fp32(machine):
    assert 0 < machine.device.flops["fp32"].achieved <= machine.device.flops["fp32"].rated


def test_watts_at_full_load_are_the_rated_ones():
    device = platform("mi300x-8").require_device()
    power = device.power
    full = (
        power.idle
        + power.active
        + power.unit * device.units
        + power.memory_byte * device.memory_rate
    )
    assert full + power.link_byte * 2 * 336e9 == pytest.approx(750, rel=0.01)


@pytest.mark.parametrize("kib", PHASES)
def test_one_dma_copy_spends_its_time_as_published(kib):
    machine = platform("mi300x-8")
    dma, link = machine.require_device().require_dma(), machine.levels[0]
    copy = dma.start + kib * 1024 / link.link_rate + dma.drain
    phases = (dma.control, dma.doorbell + dma.fetch, copy, dma.sync)
    shares = [100 * phase / sum(phases) for phase in phases]
    assert shares == pytest.approx(PHASES[kib], abs=7)


def test_a_network_has_no_device_to_give():
    with pytest.raises(PlatformError, match="is a network without devices") as caught:
        platform("switch(8)@1GB/s").require_device()
    assert "mi300x-8" in caught.value.hint


def test_a_device_may_lack_dma_engines():
    device = replace(platform("mi300x-8").require_device(), dma=None)
    with pytest.raises(PlatformError, match="mi300x has no DMA engines") as caught:
        device.require_dma()
    assert "direct" in caught.value.hint


def test_only_the_machine_without_peer_links_is_staged(machine):
    assert machine.staged == (machine.name == "l40s-8-nop2p")


def test_a_node_of_two_levels_is_still_one_node():
    node = platform("mi250x-8")
    assert (len(node.levels), node.node_size, node.num_nodes) == (2, 8, 1)


def test_a_cluster_adds_a_level_of_nics():
    cluster = platform("mi300x-8x16")
    node = platform("mi300x-8")
    assert (cluster.name, cluster.num_ranks, cluster.num_nodes) == ("mi300x-8x16", 128, 16)
    assert cluster.levels[:1] == node.levels
    assert (cluster.levels[1].kind, cluster.levels[1].rate) == ("switch", 50e9)
    assert cluster.sources["levels.1.rate"] == node.sources["nic.rate"]


def test_every_machine_makes_a_cluster(machine):
    cluster = platform(f"{machine.name}x3")
    assert (cluster.num_ranks, cluster.node_size) == (3 * machine.num_ranks, machine.num_ranks)


def test_a_platform_can_be_a_key(machine):
    assert {machine: 1}[platform(machine.name)] == 1


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("mi300-8", "'mi300x-8'"),
        ("mi300-8x16", "'mi300x-8x16'"),
        ("hree", "'here'"),
        ("quantum", "cpu"),
    ],
)
def test_an_unknown_name_suggests_known_ones(name, close):
    with pytest.raises(PlatformError, match=f"unknown platform '{name}'") as caught:
        platform(name)
    assert close in caught.value.hint


def test_a_cluster_has_at_least_one_node():
    with pytest.raises(PlatformError, match="'mi300x-8x0' is a cluster of 0 nodes") as caught:
        platform("mi300x-8x0")
    assert "mi300x-8x1" in caught.value.hint
