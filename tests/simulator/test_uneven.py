"""Transfers of all sizes at once: against max-min fairness taken event by event."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.uneven_all_to_all import uneven_all_to_all
from tests.simulator.reference import Flow, Send, finish_times
from weft.hardware import platform
from weft.schedule import CommandKind
from weft.simulator import simulate

LATENCY = 500e-9
RATE = 50 * float(1 << 30)


def random_sizes(n, seed, most=1 << 20):
    return np.random.default_rng(seed).integers(1, most, (n, n)).tolist()


def peers(n, rank):
    """In the order in which a rank sends."""
    return [(rank + k) % n for k in range(1, n)]


def reference(sizes, *, in_order):
    """When each send ends, by (src, dst)."""
    n = len(sizes)
    sends: dict[tuple[int, int], Send] = {}
    for src in range(n):
        for index, dst in enumerate(peers(n, src)):
            after = len(sends) - 1 if in_order and index else None
            sends[src, dst] = Send(Flow({src: 1.0, n + dst: 1.0}), sizes[src][dst], after)
    ends = finish_times(list(sends.values()), [RATE] * (2 * n))
    return dict(zip(sends, ends, strict=True))


def simulated(sizes, queue, tolerance=0.0):
    """When each send ends, counted from the moment that all ranks are known to be ready."""
    n = len(sizes)
    network = platform(f"switch({n})@50GiB/s,500ns")
    schedule = uneven_all_to_all(sizes, queue=queue)
    timeline = simulate(schedule, network, tolerance=tolerance, collapse=False)
    ends: dict[tuple[int, int], float] = {}
    for rank in range(n):
        copies = timeline.of(rank=rank, kind=CommandKind.COPY)
        chosen = copies.lane != 0  # the local copy stands in the first lane
        by_peer = dict(zip(peers(n, rank), (copies.end[chosen] - LATENCY).tolist(), strict=True))
        ends |= {(rank, dst): end for dst, end in by_peer.items()}
    return ends, timeline.seconds


@pytest.mark.parametrize("queue", ["nic0", "stream0"])
@pytest.mark.parametrize("n", [2, 5, 16])
def test_every_send_ends_when_max_min_fairness_says(queue, n):
    sizes = random_sizes(n, seed=n)
    want = reference(sizes, in_order=queue == "nic0")
    have, seconds = simulated(sizes, queue)
    assert have == pytest.approx(want, rel=1e-9)
    assert seconds == pytest.approx(max(want.values()) + 2 * LATENCY, rel=1e-9)


@settings(max_examples=25)
@given(data=st.data(), queue=st.sampled_from(["nic0", "stream0"]))
def test_any_table_of_sizes_is_shared_fairly(data, queue):
    n = data.draw(st.integers(2, 5))
    entry = st.integers(1, 10) | st.integers(1, 10**6)
    sizes = data.draw(st.lists(st.lists(entry, min_size=n, max_size=n), min_size=n, max_size=n))
    have, _ = simulated(sizes, queue)
    assert have == pytest.approx(reference(sizes, in_order=queue == "nic0"), rel=1e-7, abs=1e-13)


@pytest.mark.parametrize("queue", ["nic0", "stream0"])
@pytest.mark.parametrize("n", [16, 48])
@pytest.mark.parametrize("tolerance", [1e-3, 2e-3])
def test_batched_ends_stay_close_to_the_exact_ones(queue, n, tolerance):
    sizes = random_sizes(n, seed=n)
    exact, whole = simulated(sizes, queue)
    batched, close = simulated(sizes, queue, tolerance)
    errors = np.array([abs(batched[pair] / exact[pair] - 1) for pair in exact])
    assert errors.max() <= 5e-3
    assert errors.mean() <= 1e-3
    assert close == pytest.approx(whole, rel=5e-3)
