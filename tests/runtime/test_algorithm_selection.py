"""Which algorithm moves ordinary memory depends on what reading other processes costs here."""

import os

import pytest

from weft.runtime import algorithm_selector, spawn
from weft.runtime.algorithm_selector import reads_pay

MOVED = 1 << 20  # bytes of a rank, between the thresholds with and without reads


@pytest.mark.parametrize(("reading", "pays"), [(1.0, True), (2.0, True), (4.0, False)])
def test_reads_pay_while_they_replace_copies_that_take_longer(reading, pays, monkeypatch):
    monkeypatch.setattr(algorithm_selector, "time_copies", lambda *_args, **_kwargs: 1.0)
    monkeypatch.setattr(algorithm_selector, "time_reads", lambda *_args: reading)
    assert reads_pay.__wrapped__() is pays


def algorithms(world):
    found = [world.algorithm_of(kind, MOVED) for kind in ("all_to_all", "all_reduce")]
    return found, world.stages, reads_pay()


@pytest.mark.multiprocess
@pytest.mark.timeout(60)
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks that share a core pull")
def test_all_ranks_take_the_algorithm_that_rank_0_measured():
    (first, stages, pays), (second, _, _) = spawn(algorithms, 2, timeout=30)
    assert first == second == ["staged" if stages or not pays else "pull", "staged"]
