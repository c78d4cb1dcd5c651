"""No change to a schedule that makes its result depend on luck passes the checks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.arrays import Machine
from tests.collective_values import Data, expected, inputs
from tests.schedule.mutants import changed, changes, rank_by_rank
from weft.collectives import KINDS, algorithms, collective
from weft.errors import ScheduleError, UsageError
from weft.schedule import races
from weft.schedule.check import check

pytestmark = pytest.mark.thorough

ORDERS, EXECUTIONS = 20, 3
FEW = settings(
    max_examples=8,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
CASES = [(kind, algorithm) for kind in KINDS for algorithm in algorithms(kind)]


def built(kind, algorithm, num_ranks):
    num_ranks, node_size = (4, 2) if algorithm == "hierarchical" else (num_ranks, None)
    try:
        return collective(
            kind, algorithm, num_ranks=num_ranks, nbytes=4 * num_ranks, node_size=node_size
        )
    except UsageError:
        assert algorithm == "halving-doubling"
        return built(kind, algorithm, 4)


def drawn_change(kind, algorithm, data):
    """Draw a schedule with one thing changed, and what was changed."""
    whole = built(kind, algorithm, data.draw(st.integers(3, 5)))
    if data.draw(st.booleans()):
        whole = rank_by_rank(whole)
    change = data.draw(st.sampled_from(changes(whole)))
    return changed(whole, change), change


def _refused(schedule):
    try:
        check(schedule)
    except ScheduleError as error:
        return type(error), str(error)
    return None


def results(schedule, kind, seed):
    """What executions leave in the caller's buffers, and what they should have left."""
    machine = Machine(schedule, seed)
    given = [inputs(kind, schedule, execution) for execution in range(EXECUTIONS)]
    wanted = [expected(kind, schedule, data) for data in given]
    found: list[Data] = [{} for _ in wanted]

    def enter(rank, execution):
        for buffer in schedule.buffers:
            key = (rank, buffer.name)
            machine.memory[key][:] = given[execution].get(key, 0)

    def leave(rank, execution):
        mine = (key for key in wanted[execution] if key[0] == rank)
        found[execution] |= {key: machine.memory[key].copy() for key in mine}

    machine.run_ahead(EXECUTIONS, enter, leave)
    return zip(found, wanted, strict=True)


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
def test_every_collective_passes_the_checks(kind, algorithm):
    for num_ranks in (2, 3, 4, 5):
        schedule = built(kind, algorithm, num_ranks)
        check(schedule)
        check(schedule, collapse=False)
        check(rank_by_rank(schedule))


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@FEW
@given(data=st.data())
def test_a_changed_schedule_is_refused_or_still_right(kind, algorithm, data):
    schedule, change = drawn_change(kind, algorithm, data)
    if _refused(schedule):
        return
    first = None
    for seed in range(ORDERS):
        have, want = zip(*results(schedule, kind, seed), strict=True)
        first = first or have
        for mine, same in zip(have, want if change.joins else first, strict=True):
            assert all(np.array_equal(mine[key], same[key]) for key in mine)


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@FEW
@given(data=st.data())
def test_what_is_seen_at_a_glance_is_what_the_whole_look_says(kind, algorithm, data):
    schedule, _ = drawn_change(kind, algorithm, data)
    at_a_glance = _refused(schedule)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("heard_from_owner", "answered_to_owner"):
            patch.setattr(races.CertainSignals, name, lambda _, acts: acts.row < 0)
        assert _refused(schedule) == at_a_glance
