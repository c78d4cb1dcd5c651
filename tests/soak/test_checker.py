"""What judges the soak can tell right from wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.soak.growth import Held, grown, held
from tests.soak.plan import Plan
from tests.soak.rooms import GUARD, Comb, Room
from tests.soak.values import MOVED, Ask, case_of

SIZES = {"world": 4, "torch": 4, "prepared": 4, "group": 3, "torch group": 3}


def test_one_wrong_byte_is_seen_inside_and_around_a_room():
    given = np.arange(100, dtype=np.uint8)
    for at in (0, GUARD - 1, GUARD, GUARD + 99, GUARD + 100, 2 * GUARD + 99):
        whole = np.empty(100 + 2 * GUARD, np.uint8)
        room = Room(whole, 100)
        room.fill(given)
        assert room.holds(given)
        whole[at] ^= 1
        assert not room.holds(given)


@pytest.mark.parametrize("dtype", MOVED)
def test_one_wrong_byte_is_seen_on_and_between_the_teeth_of_a_comb(dtype):
    case = case_of(Ask("broadcast", 10, dtype), 2, 0, seed=5)
    for tooth in (0, 1):
        comb = Comb(case.given[0].nbytes, dtype)
        comb.fill(case.given[0])
        assert comb.holds(case.given[0])
        comb._whole[3, tooth, 0] ^= 1
        assert not comb.holds(case.given[0])


def test_all_ranks_draw_the_same_plan_and_other_seeds_another():
    plans = [Plan(seed, SIZES) for seed in (7, 7, 8)]
    first, same, other = ([plan.draw() for _ in range(200)] for plan in plans)
    assert first == same != other


def test_ranks_give_different_bytes_and_want_them_where_they_belong():
    ask = Ask("all_to_all", 50, "int64")
    cases = [case_of(ask, 4, rank, seed=11) for rank in range(4)]
    for me, case in enumerate(cases):
        for other in range(4):
            assert np.array_equal(case.wanted[other], cases[other].given[me])
    assert len({case.given[0].tobytes() for case in cases}) == 4


def test_growth_is_told_from_a_level():
    now = held()
    assert now.threads >= 1
    level = [now] * 40
    assert grown(level) == ""
    for name in Held._fields:
        rising = [
            now._replace(**{name: getattr(now, name) + number * (8 << 20)}) for number in range(40)
        ]
        assert name in grown(rising)
