"""Collectives by engines that every rank feeds itself."""

import pytest

from tests.collectives.test_values import check_collective
from weft.c3.strategies import ENGINES
from weft.hardware import platform
from weft.schedule import Copy, Launch, Reduce
from weft.schedule.check import check
from weft.simulator import simulate


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_every_rank_ends_with_what_it_should(kind, num_ranks):
    for each in (0, 1, 64):
        schedule = ENGINES[kind](num_ranks, each * num_ranks)
        check(schedule)
        check_collective(kind, schedule, seed=each)


@pytest.mark.parametrize("root", [0, 2])
def test_any_rank_can_be_the_root(root):
    check_collective("broadcast", ENGINES["broadcast"](3, 10, root=root), seed=1, root=root)


@pytest.mark.parametrize("kind", ENGINES)
def test_engines_copy_and_only_kernels_add(kind):
    for place, command in ENGINES[kind](4, 4096).commands():
        if isinstance(command, Copy):
            assert place.queue.startswith("copy")
        if isinstance(command, Launch | Reduce):
            assert kind in ("reduce_scatter", "all_reduce")
            assert place.queue == "stream1"


@pytest.mark.parametrize("kind", ENGINES)
def test_one_rank_is_enough_where_all_are_alike(kind):
    machine = platform("mi300x-8")
    schedule = ENGINES[kind](8, 8 << 20)
    collapsed, expanded = (simulate(schedule, machine, collapse=c).seconds for c in (True, False))
    assert collapsed == pytest.approx(expanded, rel=1e-9)
