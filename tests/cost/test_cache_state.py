"""What has left the caches between two uses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cost.cache_state import missing_shares

TOUCHED = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 100)), max_size=4)


def test_what_is_used_again_at_once_is_cached():
    assert missing_shares([[(1, 10)], [(1, 10), (2, 30)]], capacity=40) == [0.0, 0.0]


def test_what_does_not_fit_is_never_cached():
    assert missing_shares([[(1, 100)], [(2, 100)]], capacity=50) == [1.0, 1.0]


def test_a_share_counts_bytes():
    step = [[(1, 10)], [(3, 20)], [(1, 10), (2, 30)]]
    assert missing_shares(step, capacity=35)[2] == pytest.approx(0.75)


@given(st.lists(TOUCHED, max_size=8), st.floats(0, 500), st.floats(0, 500))
def test_more_room_misses_no_more(step, one, other):
    small, large = sorted((one, other))
    pairs = zip(missing_shares(step, small), missing_shares(step, large), strict=True)
    assert all(0 <= less <= more <= 1 for more, less in pairs)
