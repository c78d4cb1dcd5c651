import pytest

from validation import command, find_group, group_names
from validation.target import Target


def target(weft, published=10.0, *, error_in="percent", allowed=5.0, fitted=False):
    return Target("g", "n", published, "us", "s", weft, allowed, error_in, fitted)


@pytest.mark.parametrize(
    ("error_in", "weft", "error"),
    [
        ("percent", 11.0, 10.0),
        ("percent", 8.0, -20.0),
        ("points", 8.0, -2.0),
        ("ratio", 20.0, 2.0),
        ("ratio", 5.0, 2.0),
        ("value", 3.0, 3.0),
    ],
)
def test_the_error_is_counted_as_the_figure_says(error_in, weft, error):
    assert target(weft, error_in=error_in).error == pytest.approx(error)


@pytest.mark.parametrize(("weft", "met"), [(10.4, True), (10.6, False), (9.6, True), (9.4, False)])
def test_a_figure_is_met_on_both_sides_of_what_was_published(weft, met):
    assert target(weft).met is met


def test_without_a_limit_nothing_is_met_or_missed():
    assert target(1.0, allowed=-1.0).met is None
    assert target(1.0, allowed=-1.0).as_row()["tolerance"] is None


def test_without_a_published_figure_only_a_value_has_an_error():
    assert target(3.0, None).error is None
    assert target(3.0, None).met is False
    assert target(3.0, None, error_in="value").met is True


def test_what_has_no_proportion_has_no_error():
    assert target(0.0).error is None
    assert target(1.0, 0.0, error_in="ratio").met is False


@pytest.mark.parametrize("name", group_names())
def test_a_group_is_called_as_its_file(name):
    group = find_group(name)
    assert group.name == name
    assert group.question.endswith("?")


def test_a_group_without_its_data_or_limits_says_so():
    assert "WEFT_DATA" in command._summary([])
    assert command._summary([target(1.0, allowed=-1.0)]) == "None of its figures has a limit."
    assert command._summary([target(10.4), target(10.6)]).startswith("1 of 2 within")
