from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.arrays import Machine
from weft.collectives import FETCH_METHODS, fetch, fetch_platform
from weft.errors import PlatformError, UnknownNameError, UsageError
from weft.hardware import platform
from weft.schedule import check
from weft.simulator import simulate

MACHINE = platform("mi300x-8")


def seconds(num_blocks, block_bytes, method, *, engines=1, machine=MACHINE):
    schedule = fetch(num_blocks, block_bytes, method, engines=engines)
    return simulate(schedule, fetch_platform(machine, method, engines=engines)).seconds


@pytest.mark.parametrize("method", FETCH_METHODS)
@given(num_blocks=st.integers(1, 150), block_bytes=st.integers(1, 9))
def test_every_block_arrives(method, num_blocks, block_bytes):
    machine = Machine(fetch(num_blocks, block_bytes, method), seed=num_blocks)
    machine.memory[1, "pool"][:] = np.arange(num_blocks * block_bytes) * 7 % 251
    machine.run()
    assert np.array_equal(machine.memory[0, "cache"], machine.memory[1, "pool"])


@pytest.mark.parametrize("method", FETCH_METHODS)
def test_a_fetch_is_a_sound_schedule(method):
    check.check(fetch(70, 64, method))


def test_engines_share_the_blocks():
    check.check(fetch(7, 64, "b2b", engines=2))
    assert seconds(4096, 4096, "b2b", engines=2) == pytest.approx(
        seconds(4096, 4096, "b2b") / 2, rel=0.1
    )


def test_a_loop_pays_a_call_for_every_block():
    dma = MACHINE.require_device().require_dma()
    assert seconds(4096, 4096, "per-copy") == pytest.approx(4096 * dma.call, rel=0.01)
    assert seconds(4096, 4096, "batched") == pytest.approx(4096 * dma.batched_call, rel=0.01)


def test_large_blocks_are_bound_by_the_link_in_every_way():
    assert MACHINE.host is not None
    floor = 64 * (16 << 20) / MACHINE.host.link_rate
    for method in FETCH_METHODS:
        assert floor < seconds(64, 16 << 20, method) < 1.15 * floor


def test_a_faster_link_to_the_host_helps_large_blocks_and_not_small_ones():
    assert MACHINE.host is not None
    host = replace(MACHINE.host, link_rate=2 * MACHINE.host.link_rate)
    faster = replace(MACHINE, host=host)
    assert seconds(64, 16 << 20, "kernel", machine=faster) < 0.6 * seconds(64, 16 << 20, "kernel")
    assert seconds(64, 4096, "per-copy", machine=faster) == pytest.approx(
        seconds(64, 4096, "per-copy"), rel=0.01
    )


def test_more_engines_than_serve_the_host_are_refused():
    with pytest.raises(UsageError, match="mi300x has 2"):
        fetch_platform(MACHINE, "b2b", engines=3)


def test_a_device_without_engines_can_only_fetch_by_kernel():
    device = replace(MACHINE.require_device(), dma=None)
    without = replace(MACHINE, device=device)
    assert seconds(64, 4096, "kernel", machine=without) > 0
    with pytest.raises(PlatformError, match="has no DMA engines"):
        fetch_platform(without, "per-copy")


def test_a_platform_that_does_not_know_its_host_says_so():
    with pytest.raises(PlatformError, match="platform mi300x-8 does not"):
        fetch_platform(replace(MACHINE, host=None), "per-copy")


def test_wrong_counts_and_names_are_refused():
    with pytest.raises(UnknownNameError, match="method 'loop'"):
        fetch(1, 1, "loop")
    with pytest.raises(UsageError, match="num_blocks and block_bytes must"):
        fetch(0, 4096, "per-copy")
    with pytest.raises(UsageError, match=f"{10**20} blocks of 4096 bytes"):
        fetch(10**20, 4096, "per-copy")
    with pytest.raises(UsageError, match="among 4"):
        fetch(3, 4096, "b2b", engines=4)
    with pytest.raises(UsageError, match=r"\(got 2"):
        fetch(3, 4096, "per-copy", engines=2)
