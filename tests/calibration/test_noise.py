"""How quiet a machine was."""

import pytest

from weft.calibration.microbenchmarks import CODECS, codec_rates
from weft.calibration.noise import NoiseMonitor, foreign_share
from weft.hardware.measured import MeasuredNoise


@pytest.mark.parametrize(
    ("foreign", "spread", "noisy"), [(0.0, 0.0, False), (0.2, 0.0, True), (0.0, 0.3, True)]
)
def test_a_noisy_machine_is_noticed(foreign, spread, noisy):
    assert MeasuredNoise(foreign, spread, 1.0).is_noisy is noisy


def test_a_watch_says_what_it_saw():
    watch = NoiseMonitor()
    watch.look()
    found = watch.found()
    assert 0 <= found.foreign <= 1
    assert found.spread >= 0
    assert found.seconds > 0


def test_shares_are_shares():
    assert 0 <= foreign_share(0.02) <= 1


def test_codecs_have_rates_and_ratios():
    found = {each.name: each for each in codec_rates()}
    assert set(found) == set(CODECS)
    assert all(each.encode > 0 and each.decode > 0 for each in found.values())
    assert found["fp16"].ratio == pytest.approx(2.0, rel=0.01)
