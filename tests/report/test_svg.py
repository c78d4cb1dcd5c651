import xml.etree.ElementTree as ET

import pytest

from weft.report.svg import Axis, Chart, Series

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*series, log=False):
    x, y = Axis("x", [1, 10, 100], log=log), Axis("y & more", [0, 50, 100])
    return ET.fromstring(Chart("a <title>", x, y, series).svg())


def test_a_chart_is_xml_with_its_words_escaped():
    words = [text.text for text in drawn().iter(f"{SVG}text")]
    assert "a <title>" in words
    assert "y & more" in words
    assert {"1", "10", "100", "0", "50"} <= set(words)


def test_points_stand_where_their_values_are():
    chart = drawn(Series("dots", [1, 100], [0, 100], "dots"))
    low, high = chart.findall(f"{SVG}circle")[:2]
    assert float(low.get("cx", "")) < float(high.get("cx", ""))
    assert float(low.get("cy", "")) > float(high.get("cy", ""))  # down is larger in SVG


@pytest.mark.parametrize(("log", "middle"), [(True, 10), (False, 50.5)])
def test_an_axis_may_be_logarithmic(log, middle):
    assert Axis("", [1, 100], log=log).share(middle) == pytest.approx(0.5)


def test_a_series_that_is_not_listed_is_drawn_and_not_in_the_legend():
    chart = drawn(Series("shown", [1], [1]), Series("hidden", [1], [1], "dashes", listed=False))
    words = [text.text for text in chart.iter(f"{SVG}text")]
    assert "shown" in words
    assert not any("hidden" in (word or "") for word in words)
    assert len(chart.findall(f"{SVG}polyline")) == 2
