"""What fusing saves in simulation, compared with what was published."""

import pytest

from validation.fused import targets


@pytest.fixture(scope="module")
def figures():
    return {(target.group, target.name): target for target in targets()}


def test_every_figure_is_as_near_as_it_must_be(figures):
    assert [name for name, target in figures.items() if target.met is False] == []
    assert sum(target.met is True for target in figures.values()) == 7


def test_none_was_fitted_to(figures):
    assert not any(target.fitted for target in figures.values())


def test_no_mean_is_above_what_overlap_can_remove(figures):
    means = [target.weft for (group, _), target in figures.items() if group == "mean"]
    assert all(0 < mean < 50 for mean in means)
