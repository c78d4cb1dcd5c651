"""The order of layouts by predicted and by measured time."""

from __future__ import annotations

import pytest

from validation.layouts import TimedLayout, order_of


def layouts(group, measured, predicted):
    return [TimedLayout((group,), *times) for times in zip(measured, predicted, strict=True)]


def test_layouts_in_order_have_a_correlation_of_one_and_their_best_is_the_fastest():
    order = order_of(layouts("a", [1.0, 2.0, 3.0, 4.0], [2.0, 2.1, 2.2, 9.0]))
    assert (order.groups, order.chosen) == (1, 1.0)
    assert order.correlation == pytest.approx(1.0)


def test_a_choice_is_as_good_as_the_fastest_within_five_percent():
    near = layouts("near", [1.0, 1.04, 3.0, 4.0], [2.0, 1.0, 3.0, 4.0])
    far = layouts("far", [1.0, 1.06, 3.0, 4.0], [2.0, 1.0, 3.0, 4.0])
    order = order_of([*near, *far])
    assert order.groups == 2
    assert order.chosen == 0.5
    assert order.correlation == pytest.approx(0.8)


def test_small_groups_have_no_order():
    small = layouts("small", [3.0, 2.0, 1.0], [1.0, 2.0, 3.0])
    assert order_of([*small, *layouts("a", [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0])]).groups == 1
