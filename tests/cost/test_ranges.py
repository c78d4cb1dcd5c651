"""Ranges: terms join as squares, hold the price, and grow with what makes a price uncertain."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.cost.ranges import (
    FILE,
    OTHER,
    Deviation,
    calibration_noise,
    collective_term,
    divided_term,
    range_term,
)
from weft.hardware.files import read_toml
from weft.hardware.measured import MeasuredNoise

sizes = st.floats(0, 2)
deviations = st.builds(Deviation, sizes, sizes)
shares = st.floats(0, 0.85)


@given(st.lists(deviations, min_size=1, max_size=5))
def test_joined_terms_are_wider_than_each_and_narrower_than_their_sum(terms):
    found = Deviation().joined(*terms)
    for side in ("down", "up"):
        each = [getattr(term, side) for term in terms]
        assert max(each) <= getattr(found, side) * (1 + 1e-12)
        assert getattr(found, side) <= sum(each) * (1 + 1e-12)


@given(deviations)
def test_factors_hold_the_price_and_lead_back_to_their_deviation(term):
    low, high = term.factors
    assert 0 < low <= 1 <= high
    again = Deviation.between(low, high)
    assert (again.down, again.up) == pytest.approx((term.down, term.up), abs=1e-9)


def test_a_price_beyond_its_own_end_has_no_deviation_to_that_side():
    assert Deviation.between(1.1, 0.9) == Deviation()


@given(shares, shares, st.floats(0, 1), st.floats(0, 1))
def test_a_noisier_calibration_is_never_taken_as_more_certain(foreign, more, spread, wider):
    quiet = calibration_noise(MeasuredNoise(foreign, spread, 1.0))
    noisy = calibration_noise(MeasuredNoise(max(foreign, more), spread + wider, 1.0))
    assert quiet.down <= noisy.down
    assert quiet.up <= noisy.up


def test_a_calibration_next_to_others_holds_the_machine_without_them():
    # Two of five cores' time were taken: an op took 1 / 0.6 times as long as on an idle machine.
    low, high = calibration_noise(MeasuredNoise(0.4, 0.0, 1.0)).factors
    assert low == pytest.approx(0.6)
    assert high == pytest.approx(1 / 0.6)
    assert calibration_noise(None) == Deviation()
    assert math.isfinite(calibration_noise(MeasuredNoise(1.0, 9.0, 1.0)).up)


def test_what_shapes_have_in_common_and_by_themselves_is_the_whole_term():
    for name in ("gemm", "attention", "moe"):
        alone, alike = divided_term("elsewhere", name)
        whole = range_term("elsewhere", name)
        assert alone.joined(alike).up == pytest.approx(whole.up)
        assert alike.up > 0


def test_another_author_or_version_is_never_nearer_than_the_floor():
    for name in ("gemm", "attention", "decode", "moe", "norm", "no such family"):
        assert range_term("elsewhere", name).up >= 0.1


def test_overhead_of_a_collective_is_known_less_well_than_what_its_bytes_take():
    for name in ("nccl", "servers"):
        ends = [collective_term(name, share).up for share in (0.0, 1.0)]
        assert ends[0] == range_term("collectives", name).up
        assert ends[0] < ends[1]
        assert collective_term(name, 0.5).up == pytest.approx(math.hypot(*ends) / 2)


def test_every_recorded_term_is_a_width():
    for group, entries in read_toml(FILE).items():
        assert group == "collectives" or OTHER in entries
        for name in entries:
            term = range_term(group, name)
            widest = 2.0 if group == "serving" else 1.0  # SGLang's first tokens: a factor of five
            assert 0 <= term.down < widest
            assert 0 <= term.up < widest
