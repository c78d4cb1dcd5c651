"""How late a signal arrives, and what that makes of whole collectives: closed forms."""

from __future__ import annotations

import math

import pytest

from tests.simulator.paper import DEVICE, GB, US, bare, hear, machine, made, move, queue, tell
from weft.collectives import collective
from weft.errors import UsageError
from weft.hardware import Level, platform
from weft.simulator import simulate

MIB, GIB = 1 << 20, float(1 << 30)


def seconds_of_a_signal(src, dst, network):
    ranks = {src: (queue("stream0", tell(dst)),), dst: (queue("stream0", hear()),)}
    return simulate(made(network.num_ranks, ranks), network).seconds


@pytest.mark.parametrize(
    ("levels", "src", "dst", "latency"),
    [
        ([Level("switch", 8, GB, 2 * US)], 0, 5, 2 * US),
        ([Level("mesh", 8, GB, 2 * US)], 0, 5, 2 * US),
        ([Level("ring", 8, GB, 2 * US)], 0, 1, 2 * US),
        ([Level("ring", 8, GB, 2 * US)], 0, 4, 8 * US),
        ([Level("ring", 8, GB, 2 * US)], 0, 5, 6 * US),
        ([Level("ring", 8, GB, 2 * US)], 6, 1, 6 * US),
        ([Level("switch", 2, GB, 1 * US), Level("switch", 3, GB, 5 * US)], 0, 1, 1 * US),
        ([Level("switch", 2, GB, 1 * US), Level("switch", 3, GB, 5 * US)], 1, 5, 5 * US),
        ([Level("switch", 2, GB, 1 * US), Level("switch", 3, GB, 5 * US)], 0, 5, 6 * US),
        ([Level("ring", 4, GB, 1 * US), Level("ring", 5, GB, 10 * US)], 0, 15, 21 * US),
    ],
)
def test_latency_counts_once_a_switch_and_once_a_hop(levels, src, dst, latency):
    assert seconds_of_a_signal(src, dst, bare(*levels)) == pytest.approx(latency, rel=1e-12)


def test_a_device_adds_what_raising_a_flag_elsewhere_costs():
    assert seconds_of_a_signal(0, 1, machine()) == pytest.approx(DEVICE.signal)
    alone = made(1, {0: (queue("stream0", tell(0)), queue("stream1", hear()))})
    assert simulate(alone, machine(1)).seconds == 0


def test_a_copy_ends_when_its_bytes_have_left_and_its_signal_a_latency_later():
    send = {0: (queue("nic0", move(0, 1, 10**7), tell(1)),), 1: (queue("stream0", hear()),)}
    network = bare(Level("switch", 2, 10 * GB, 3 * US))
    assert simulate(made(2, send), network).seconds == pytest.approx(1003 * US, rel=1e-12)


def seconds(kind, algorithm, network, nbytes, **options):
    found = platform(network)
    schedule = collective(kind, algorithm, num_ranks=found.num_ranks, nbytes=nbytes, **options)
    return simulate(schedule, found).seconds


@pytest.mark.parametrize("n", [2, 8, 64])
def test_a_ring_all_reduce_takes_twice_n_minus_one_steps(n):
    have = seconds("all_reduce", "ring", f"ring({n})@50GiB/s,500ns", n * MIB)
    # One latency more: nobody writes to the next rank before that says it is ready.
    assert have == pytest.approx(2 * (n - 1) * MIB / (50 * GIB) + (2 * n - 1) * 0.5 * US)


@pytest.mark.parametrize("kind", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("n", [2, 8])
def test_a_ring_of_one_phase_takes_n_minus_one_steps(kind, n):
    have = seconds(kind, "ring", f"ring({n})@50GiB/s,500ns", n * MIB)
    assert have == pytest.approx((n - 1) * MIB / (50 * GIB) + n * 0.5 * US)


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all", "reduce_scatter"])
@pytest.mark.parametrize("n", [2, 8, 64])
def test_a_direct_exchange_takes_what_a_port_lets_through(kind, n):
    have = seconds(kind, "direct", f"switch({n})@50GiB/s,500ns", n * MIB)
    assert have == pytest.approx((n - 1) * MIB / (50 * GIB) + 2 * 0.5 * US)


@pytest.mark.parametrize("n", [2, 8])
def test_a_direct_exchange_on_a_mesh_uses_all_links_at_once(n):
    have = seconds("all_to_all", "direct", f"mesh({n})@{n - 1}GiB/s,500ns", n * MIB)
    assert have == pytest.approx(MIB / GIB + 2 * 0.5 * US)


@pytest.mark.parametrize("n", [3, 4, 9])
def test_a_direct_all_to_all_on_a_ring_is_bound_by_its_links(n):
    have = seconds("all_to_all", "direct", f"ring({n})@1GiB/s", n * MIB)
    forward = sum(h for h in range(1, n) if h <= n - h)  # chunks that pass each link upwards
    assert have == pytest.approx(forward * MIB / GIB)


@pytest.mark.parametrize("n", [2, 8, 64])
def test_halving_and_doubling_takes_twice_log_n_steps(n):
    have = seconds("all_reduce", "halving-doubling", f"switch({n})@50GiB/s,500ns", n * MIB)
    steps = 2 * math.log2(n)
    assert have == pytest.approx(2 * (n - 1) * MIB / (50 * GIB) + (steps + 1) * 0.5 * US)


@pytest.mark.parametrize(("inside", "outside"), [(4, 2), (8, 16)])
def test_a_hierarchical_all_reduce_is_the_sum_of_its_three_parts(inside, outside):
    network = f"switch({inside})@400GiB/s,936ns/switch({outside})@50GiB/s,2us"
    nbytes = inside * outside * MIB
    have = seconds("all_reduce", "hierarchical", network, nbytes, node_size=inside)
    part = nbytes / inside
    within = 2 * ((inside - 1) * part / (400 * GIB) + 2 * 936e-9)
    between = (
        2 * (outside - 1) / outside * part / (50 * GIB) + (2 * math.log2(outside) + 1) * 2 * US
    )
    # Readiness is said while the part before still runs; the closed form pays for it each time.
    assert have <= (within + between) * (1 + 1e-9)
    assert have == pytest.approx(within + between, rel=0.05)


@pytest.mark.parametrize(("n", "pieces"), [(2, 1), (4, 10), (9, 3)])
def test_a_chain_is_a_pipeline(n, pieces):
    network = f"switch({n})@1GiB/s,500ns"
    have = seconds("broadcast", "chain", network, pieces * MIB, piece=MIB)
    # K pieces down n - 1 links; a rank sends on before the signal of the last piece is there,
    # so the pieces follow each other without the latency.
    step = MIB / GIB
    assert have == pytest.approx((n - 2 + pieces) * step + (n - 1) * 0.5 * US + 0.5 * US)
    assert have <= (n - 2 + pieces) * (step + 0.5 * US) + 1 * US


@pytest.mark.parametrize("n", [2, 5, 8, 16])
def test_a_binomial_broadcast_doubles_who_has_it(n):
    have = seconds("broadcast", "binomial", f"switch({n})@1GiB/s,500ns", MIB)
    steps = math.ceil(math.log2(n))
    assert have == pytest.approx(steps * MIB / GIB + steps * 0.5 * US + 0.5 * US, rel=1e-3)


def test_a_barrier_costs_a_latency():
    assert seconds("barrier", "direct", "switch(8)@1GiB/s,500ns", 0) == pytest.approx(0.5 * US)


def test_a_message_costs_its_bytes_and_two_latencies():
    have = seconds("send_recv", "direct", "switch(8)@1GiB/s,500ns", MIB)
    assert have == pytest.approx(MIB / GIB + 1 * US)


def test_a_read_from_another_rank_is_asked_for_first():
    network = platform("switch(2)@1GB/s,10us")
    nbytes = 1_000_000
    pulled, pushed = (
        simulate(collective("all_gather", name, num_ranks=2, nbytes=2 * nbytes), network).seconds
        for name in ("pull", "direct")
    )
    greeting, moving, latency = 10e-6, nbytes / 1e9, 10e-6
    assert pushed == pytest.approx(greeting + moving + latency)
    # Asked for, sent, and then the reader says that it has it.
    assert pulled == pytest.approx(greeting + 2 * latency + moving + latency)


def test_pulling_stays_inside_a_node():
    with pytest.raises(UsageError, match="of 8"):
        collective("all_gather", "pull", num_ranks=16, nbytes=1 << 20, node_size=8)
