"""Which lookups miss: against caches that are simulated lookup by lookup."""

from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.cost.reuse import BINS, drawn_indices, from_bins, from_sample, reuse_bins, zipf
from weft.errors import UsageError


def one(value):
    return np.array([float(value)])


def misses_of(indices, capacity):
    """An LRU cache, lookup by lookup."""
    cache: OrderedDict[int, bool] = OrderedDict()
    missed = 0
    for index in indices:
        if index in cache:
            cache.move_to_end(index)
        else:
            missed += 1
            cache[index] = True
            if len(cache) > capacity:
                cache.popitem(last=False)
    return missed


def drawn(rows, lookups, exponent, seed=0):
    share = np.arange(1, rows + 1.0) ** -exponent
    return np.random.default_rng(seed).choice(rows, lookups, p=share / share.sum())


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.05, 1.4])
@pytest.mark.parametrize("capacity", [50, 500, 5000])
def test_misses_are_those_of_a_simulated_cache(exponent, capacity):
    indices = drawn(4000, 20000, exponent)
    want = misses_of(indices.tolist(), capacity)
    known = zipf(one(4000), one(20000), one(exponent)).misses(one(capacity))[0]
    seen = from_sample(indices).misses(one(capacity))[0]
    assert known == pytest.approx(want, rel=0.06)
    assert seen == pytest.approx(want, rel=0.12)  # that a row was asked for once, it could not know


@settings(max_examples=50)
@given(
    rows=st.integers(1, 10**7),
    lookups=st.integers(1, 10**6),
    exponent=st.floats(0, 2),
    capacity=st.floats(1, 1e6),
)
def test_misses_lie_between_unique_rows_and_lookups(rows, lookups, exponent, capacity):
    spectrum = zipf(one(rows), one(lookups), one(exponent))
    missed, more = spectrum.misses(one(capacity))[0], spectrum.misses(one(2 * capacity))[0]
    assert spectrum.lookups[0] == pytest.approx(lookups)
    assert spectrum.unique[0] <= rows * (1 + 1e-9)
    assert spectrum.unique[0] * (1 - 1e-6) <= missed <= lookups * (1 + 1e-6)
    assert more <= missed * (1 + 1e-6)


def test_a_sample_is_counted_exactly():
    spectrum = from_sample([5, 5, 5, 7, 9, 9])
    assert spectrum.lookups[0] == 6
    assert spectrum.unique[0] == 3


def test_uniform_lookups_have_the_unique_rows_of_chance():
    want = len(np.unique(drawn(1000, 2000, 0.0)))
    assert zipf(one(1000), one(2000), one(0)).unique[0] == pytest.approx(want, rel=0.05)


def test_bins_of_a_sample_give_its_unique_rows_back():
    indices = drawn(4000, 20000, 1.05)
    shares = reuse_bins(from_sample(indices))
    assert shares.shape == (1, BINS)
    assert shares.sum() == pytest.approx(1.0)
    found = from_bins(shares, one(20000))
    assert found.unique[0] == pytest.approx(len(np.unique(indices)), rel=0.15)
    assert found.lookups[0] == pytest.approx(20000)


def test_both_kinds_of_tables_stand_next_to_each_other():
    known = zipf(np.array([100.0, 100.0]), np.array([50.0, 0.0]), np.zeros(2))
    seen = from_bins(np.array([[0.0] * BINS, [1.0] + [0.0] * (BINS - 1)]), np.array([0.0, 30.0]))
    both = known.joined_with(seen)
    assert both.lookups == pytest.approx([50.0, 30.0])
    assert both.unique[1] == pytest.approx(30.0)


@pytest.mark.parametrize("shares", [[1.0] * 16, [-0.1] + [0.1] * 16])
def test_bins_that_are_none_are_refused(shares):
    with pytest.raises(UsageError, match="reuse needs 17 shares of zero or more"):
        from_bins(np.array([shares]), one(10))


@pytest.mark.parametrize("indices", [[], [1, -1]])
def test_a_sample_that_is_none_is_refused(indices):
    with pytest.raises(UsageError, match="a sample of indices must hold some"):
        from_sample(indices)


@pytest.mark.parametrize("exponent", [0.0, 1.05])
@pytest.mark.parametrize("together", [1, 8, 64])
def test_blocks_are_visited_as_often_as_indices_drawn_say(exponent, together):
    indices = drawn_indices(6400, 2000, exponent, np.random.default_rng(3))
    found = zipf(one(6400), one(2000), one(exponent)).visited(one(6400), one(together))[0]
    assert found == pytest.approx(len(np.unique(indices // together)), rel=0.07)


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.3])
def test_drawn_indices_stay_inside_the_table(exponent):
    indices = drawn_indices(17, 5000, exponent, np.random.default_rng(0))
    assert indices.min() >= 0
    assert indices.max() <= 16
    assert len(np.unique(indices)) == 17
