"""What ``check`` says of small schedules is what trying every interleaving says."""

import pytest

from tests.schedule.interleavings import Model, drawn
from weft.errors import DeadlockError, RaceError, ScheduleError
from weft.schedule.check import check

EXECUTIONS = 2


@pytest.mark.parametrize("part", range(4))
def test_the_checks_accept_what_never_races_or_blocks_and_nothing_else(part):
    accepted = refused = 0
    for seed in range(100 * part, 100 * part + 100):
        schedule = drawn(seed)
        try:
            check(schedule)
            said = "good"
        except (RaceError, DeadlockError) as error:
            said = type(error).__name__
        except ScheduleError:
            continue
        found = Model(schedule, EXECUTIONS).verdict()
        if found == "unknown":
            continue
        assert (said == "good") == (found == "good"), (seed, said, found)
        accepted += said == "good"
        refused += said != "good"
    assert min(accepted, refused) >= 10
