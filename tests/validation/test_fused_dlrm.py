"""A step of a recommendation model: what fusing its lookups changes, and what it does not."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.fused.test_operators import bytes_of
from validation.fused_cases import DLRM
from validation.fused_dlrm import dlrm_step
from validation.fused_prices import apart_nodes
from weft.hardware import platform
from weft.schedule import Kernel
from weft.schedule.check import check
from weft.simulator import simulate

NODE = platform("mi210-4")


@pytest.mark.parametrize("units", [None, 104])
@pytest.mark.parametrize("num_ranks", [2, 5])
def test_a_step_can_be_run(units, num_ranks):
    check(dlrm_step(DLRM, num_ranks, units=units))


def test_the_same_kernels_compute_fused_or_apart():
    def work(units):
        found: Counter[str] = Counter()
        for _, command in dlrm_step(DLRM, 4, units=units, slices=2).commands([0]):
            if isinstance(command, Kernel):
                found[command.op] += command.cost.nbytes
        return found

    apart, fused = work(None), work(104)
    shuffled = apart.pop("shuffle")
    assert shuffled > 0
    assert apart == fused


def test_a_fused_step_moves_no_byte_twice():
    def moved(units):
        step = dlrm_step(DLRM, 4, units=units)
        return sum(bytes_of(c) for _, c in step.commands([0]))

    lookups = DLRM.embedding(4).nbytes
    assert moved(None) - moved(104) == lookups // 4  # its own part, which a fused kernel leaves


def test_more_ranks_are_simulated_as_one():
    step = dlrm_step(DLRM, 256, units=104)
    assert len(simulate(step, apart_nodes(NODE, 256)).ranks) == 1
