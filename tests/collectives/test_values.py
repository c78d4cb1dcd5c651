"""Every collective, by value, on arrays, in random orders, twice in a row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.uneven_all_to_all import uneven_all_to_all
from tests.arrays import Machine
from tests.collective_values import expected, inputs
from weft.collectives import KINDS, algorithms, collective, pull
from weft.errors import UsageError
from weft.schedule import Broadcast
from weft.schedule.check import check

pytestmark = pytest.mark.thorough

SIZES = (0, 7, 129)
MORE_SIZES = (1, 64)  # for few ranks: what is slow is many
CASES = [(kind, algorithm) for kind in KINDS for algorithm in algorithms(kind)]


def check_collective(kind, schedule, seed, root=0):
    machine = Machine(schedule, seed)
    for execution in range(2):
        data = inputs(kind, schedule, seed + execution, root)
        for key, values in data.items():
            machine.memory[key][:] = values
        machine.run()
        for key, want in expected(kind, schedule, data, root).items():
            assert np.array_equal(machine.memory[key], want), key


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@pytest.mark.parametrize("num_ranks", range(2, 10))
def test_every_rank_ends_with_what_it_should(kind, algorithm, num_ranks):
    whole = num_ranks if kind in ("all_gather", "reduce_scatter", "all_to_all") else 1
    for size in SIZES + (MORE_SIZES if num_ranks < 5 else ()):
        nbytes = size * whole
        for node_size in (2, 3) if algorithm == "hierarchical" else (None,):
            try:
                schedule = collective(
                    kind, algorithm, num_ranks=num_ranks, nbytes=nbytes, node_size=node_size
                )
            except UsageError:
                assert algorithm in ("halving-doubling", "hierarchical")
                continue
            check_collective(kind, schedule, seed=nbytes)


@pytest.mark.parametrize("num_ranks", range(2, 6))
def test_a_pushed_all_gather_reads_every_part_once(num_ranks):
    for size in SIZES:
        made = pull.push_all_gather(num_ranks, size * num_ranks)
        check_collective("all_gather", made, seed=size)
        check(made)
        spread = [c for _, c in made.commands() if isinstance(c, Broadcast)]
        assert [len(command.dsts) for command in spread] == [num_ranks] * num_ranks


@pytest.mark.parametrize("algorithm", algorithms("broadcast"))
@settings(max_examples=40)
@given(num_ranks=st.integers(2, 6), nbytes=st.integers(0, 200), data=st.data())
def test_any_rank_can_be_the_root(algorithm, num_ranks, nbytes, data):
    if algorithm == "hierarchical":
        num_ranks *= 2
    root = data.draw(st.integers(0, num_ranks - 1))
    options = {"node_size": 2} if algorithm == "hierarchical" else {}
    if algorithm in ("chain", "tree"):
        options["piece"] = data.draw(st.integers(1, 64))
    try:
        schedule = collective(
            "broadcast", algorithm, num_ranks=num_ranks, nbytes=nbytes, root=root, **options
        )
    except UsageError:
        assert algorithm == "hierarchical"
        return
    check_collective("broadcast", schedule, seed=1, root=root)


@pytest.mark.parametrize("queue", ["stream0", "nic0", "copy0"])
@settings(max_examples=40)
@given(data=st.data())
def test_an_uneven_all_to_all_delivers_every_byte(queue, data):
    n = data.draw(st.integers(2, 6))
    sizes = [[data.draw(st.integers(0, 9)) for _ in range(n)] for _ in range(n)]
    schedule = uneven_all_to_all(sizes, queue=queue)
    machine = Machine(schedule)
    filled = inputs("all_to_all", schedule, 0)
    for key, values in filled.items():
        machine.memory[key][:] = values
    machine.run()
    for j in range(n):
        parts = [filled[i, "in"][sum(sizes[i][:j]) : sum(sizes[i][: j + 1])] for i in range(n)]
        assert np.array_equal(machine.memory[j, "out"], np.concatenate(parts))
