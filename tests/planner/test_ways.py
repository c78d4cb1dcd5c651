"""What a way is called, and what is refused."""

from __future__ import annotations

import pytest

from tests.planner.toy import way
from weft.planner.ways import refused


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ({}, "dma"),
        ({"engines": 7}, "dma (7)"),
        ({"algorithm": "ring", "units": 8}, "dma (ring, 8)"),
        ({"backend": "weft", "engines": 1}, "dma (weft, 1)"),
        ({"backend": "gloo"}, "dma"),  # what torch takes by itself
    ],
)
def test_a_way_is_called_by_what_tells_it_from_others(settings, label):
    assert way(1, "dma", settings=settings).label == label


def test_ways_are_keys_whatever_their_settings():
    assert hash(way(1, settings={"engines": 7})) == hash(way(1, settings={"engines": 8}))
    assert way(1, settings={"engines": 7}) != way(1, settings={"engines": 8})


def test_what_is_refused_has_a_reason_and_no_seconds():
    found = refused("dma", "there are none")
    assert (found.seconds, found.settings, found.refused) == (None, {}, True)
    assert refused("compressed", "too coarse", {"codec": "int4"}).settings == {"codec": "int4"}
