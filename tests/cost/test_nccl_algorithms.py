"""NCCL between nodes: rails add up, phases overlap, and latency follows the number of nodes."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cost.nccl import library_price, network_of
from weft.cost.nccl_algorithms import (
    MESSAGES,
    RINGS,
    NodeNetwork,
    algorithm_seconds,
    channels_to_a_peer,
)
from weft.hardware import Level, platform
from weft.hardware.libraries import algorithm_fit

FIT = algorithm_fit("nccl")
assert FIT is not None
COEFFICIENTS = FIT.coefficients
NIC, NVLINK = 50e9, 370e9
GIB = 1 << 30
kinds = st.sampled_from((*RINGS, *MESSAGES))
sizes = st.integers(1, 1 << 36)


def network(nodes, gpus, nic=NIC):
    return NodeNetwork(nodes, gpus, nic, NVLINK, NVLINK)


def seconds(nodes, gpus, kind, nbytes, nic=NIC):
    return algorithm_seconds(network(nodes, gpus, nic), kind, nbytes, COEFFICIENTS)


@pytest.mark.parametrize("gpus", [1, 2, 3, 4, 6])
def test_rails_add_up_until_the_node_is_full(gpus):
    bus = 16 * GIB * (4 * gpus - 1) / (4 * gpus) / seconds(4, gpus, "all_gather", 16 * GIB)
    assert bus == pytest.approx(gpus * COEFFICIENTS["share"] * NIC, rel=0.01)


def test_a_full_node_is_bounded_by_its_own_links():
    bus = 16 * GIB * 31 / 32 / seconds(4, 8, "all_gather", 16 * GIB)
    assert bus == pytest.approx(NVLINK, rel=0.01)
    assert seconds(4, 8, "all_gather", GIB, 10 * NIC) == seconds(4, 8, "all_gather", GIB)


@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_the_root_of_a_gather_takes_what_its_own_node_sends_as_well(kind):
    # Of 15/16 GiB the root's NIC takes 1/16, all else comes over NVLink.
    assert seconds(2, 8, kind, GIB) >= GIB * 14 / 16 / NVLINK


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("nbytes", [1 << 16, 1 << 24, 1 << 28])
def test_one_node_more_never_costs_much(kind, nbytes):
    # Halving and doubling among 17 nodes would take half again as long as among 16.
    took = [seconds(nodes, 8, kind, nbytes) for nodes in (15, 16, 17)]
    assert took[0] < took[2] < 1.2 * took[0]


def test_a_small_all_reduce_takes_a_tree_and_a_large_one_a_ring():
    steps = {n: seconds(n, 8, "all_reduce", 1024) for n in (16, 256)}
    assert steps[256] < 2 * steps[16]  # the logarithm of nodes, not their number
    large = {n: seconds(n, 8, "all_gather", 1024) for n in (16, 256)}
    assert large[256] > 8 * large[16]


def test_channels_to_a_peer_fall_with_the_number_of_nodes():
    # As the logs show: about 40 GB/s between two nodes, 25 GB/s among ten.
    assert [channels_to_a_peer(network(n, 1)) for n in (2, 4, 5, 10)] == [2, 2, 1, 1]
    assert 4 * GIB / seconds(2, 1, "send", 4 * GIB) == pytest.approx(40e9, rel=0.05)
    assert 4 * GIB / seconds(10, 1, "send", 4 * GIB) == pytest.approx(25e9, rel=0.05)


def test_a_message_has_a_start():
    assert seconds(2, 8, "send", 1) >= COEFFICIENTS["message"]
    assert seconds(1, 8, "send", 1) >= COEFFICIENTS["local"]


def test_a_large_message_inside_a_node_gets_more_channels():
    rates = [n / seconds(1, 8, "send", n) for n in (32 << 20, 128 << 20, GIB)]
    assert rates[0] == pytest.approx(80e9, rel=0.05)
    assert rates[1] == pytest.approx(160e9, rel=0.05)
    assert rates[2] == pytest.approx(NVLINK, rel=0.02)


@given(kind=kinds, nodes=st.integers(2, 4096), gpus=st.integers(1, 16), nbytes=sizes, more=sizes)
def test_more_bytes_are_never_faster(kind, nodes, gpus, nbytes, more):
    less = seconds(nodes, gpus, kind, nbytes)
    assert 0 < less <= seconds(nodes, gpus, kind, nbytes + more) * (1 + 1e-9)


@given(
    kind=kinds,
    nodes=st.integers(2, 4096),
    gpus=st.integers(1, 16),
    nbytes=sizes,
    factor=st.floats(1, 20),
)
def test_faster_nics_are_never_slower_and_gain_no_more_than_their_factor(
    kind, nodes, gpus, nbytes, factor
):
    before, after = (seconds(nodes, gpus, kind, nbytes, NIC * f) for f in (1, factor))
    assert before / factor <= after * (1 + 1e-9)
    assert after <= before * (1 + 1e-9)


@pytest.mark.parametrize("spec", ["h100-8x4", "mi300x-8x4", "b200-8x9", "v100-8x2"])
@pytest.mark.parametrize("kind", [*RINGS, *MESSAGES])
def test_clusters_of_the_catalogue_have_a_price(spec, kind):
    found = library_price(platform(spec), kind, 64 << 20)
    assert found.low < 1 < found.high
    assert found.seconds > (64 << 20) / 8 / 900e9
    assert "fitted on H100" in found.note


def test_a_library_that_was_not_logged_has_a_wider_range():
    nccl, rccl = (library_price(platform(p), "all_gather", GIB) for p in ("h100-8x4", "mi300x-8x4"))
    assert rccl.high > nccl.high
    assert "RCCL" in rccl.note


def test_the_slowest_of_outer_levels_is_the_nic():
    machine = platform("h100-8x4")
    around = replace(machine, levels=(*machine.levels, Level("switch", 3, 10e9, 1e-6)))
    assert network_of(around, "all_gather").nic_rate == 10e9
    assert network_of(around, "all_gather").nodes == 12


def test_the_model_is_within_six_percent_of_what_was_held_out():
    assert FIT is not None
    held_out = FIT.held_out
    assert {*held_out} == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send"}
    assert max(held_out.values()) < 0.06
