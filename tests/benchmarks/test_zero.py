"""How losses and shares of a ZeRO run are read."""

import pytest

from benchmarks.zero import _LAST, _compared, _share


def held(*losses, shared=()):
    return [{"losses": list(each), "shared": list(shared)} for each in losses]


def test_the_last_common_steps_are_compared_over_all_ranks():
    plain = held([4.0] * 10 + [2.0] * _LAST, [4.0] * 10 + [2.0] * _LAST)
    longer = held([4.0] * 10 + [2.02] * _LAST + [9.0] * 7, [4.0] * 10 + [2.02] * _LAST + [9.0] * 7)
    found = _compared(longer, plain)
    assert found["loss_difference"] == pytest.approx(0.01)
    assert found["first_loss"] == 4.0
    assert _compared(plain, plain)["loss_difference"] == 0


def test_the_share_is_that_of_the_slowest_rank():
    ranks = [*held([1.0], shared=[0.1, 0.2, 0.3]), *held([1.0], shared=[0.4, 0.5, 0.6])]
    assert _share(ranks, (1.0, 2.0, 1.0)) == pytest.approx(0.5)
