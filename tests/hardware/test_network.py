"""Bare networks: what is written is what is read, and a mistake is named where it stands."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import PlatformError
from weft.hardware import Level, format_network, parse_network, platform

levels = st.builds(
    Level,
    kind=st.sampled_from(["switch", "ring", "mesh"]),
    size=st.integers(1, 10**6),
    rate=st.floats(1e-3, 1e18),
    latency=st.floats(0, 1e3),
)


@given(levels=st.lists(levels, min_size=1, max_size=4).map(tuple))
def test_a_network_that_was_written_reads_the_same(levels):
    assert parse_network(format_network(levels)) == levels


@given(
    size=st.integers(1, 9999),
    rate=st.integers(1, 999),
    latency=st.integers(0, 999),
    space=st.sampled_from(["", " "]),
)
def test_units_and_spaces_are_read_as_people_write_them(size, rate, latency, space):
    spec = f"ring({size}){space}@{space}{rate}GiB/s,{space}{latency}ns"
    (level,) = parse_network(spec)
    assert level.size == size
    assert level.rate == rate * 2**30
    assert level.latency == pytest.approx(latency * 1e-9)


@given(text=st.text(max_size=30))
def test_any_text_is_a_network_or_a_named_error(text):
    try:
        assert parse_network(text)
    except PlatformError as error:
        assert "level" in error.message  # noqa: PT017 - either outcome is fine, a third is not


def test_levels_stand_from_the_inside_out():
    inner, outer = parse_network("switch(8)@400GiB/s,936ns/switch(2048)@50GiB/s,2us")
    assert inner == Level("switch", 8, 400 * 2**30, 936e-9)
    assert outer == Level("switch", 2048, 50 * 2**30, 2e-6)


def test_a_latency_that_is_left_out_is_zero():
    assert parse_network("mesh(4)@400Gbit/s") == (Level("mesh", 4, 50e9, 0.0),)


def test_a_network_is_a_platform_without_devices():
    bare = platform("switch(8)@400GiB/s,936ns/ring(4)@50GiB/s")
    assert (bare.device, bare.num_ranks, bare.node_size, bare.num_nodes) == (None, 32, 8, 4)


def test_a_mesh_splits_its_rate_over_its_links():
    assert Level("mesh", 8, 336e9).link_rate == 48e9
    assert Level("mesh", 1, 336e9).link_rate == 336e9
    assert Level("switch", 8, 336e9).link_rate == 336e9
    assert Level("ring", 8, 336e9).link_rate == 336e9


@given(kind=st.sampled_from(["switch", "ring", "mesh"]), size=st.integers(2, 64), data=st.data())
def test_cutting_a_level_never_changes_a_link(kind, size, data):
    level = Level(kind, size, 336e9, 1e-6, 448e9)
    cut = level.cut(data.draw(st.integers(2, size)))
    assert cut.link_rate == pytest.approx(level.link_rate)
    assert cut.rated == pytest.approx(cut.rate * 448 / 336)
    assert cut.latency == level.latency


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("swich(8)@1GB/s", "level 1: kind 'swich': expected switch, ring or mesh"),
        ("switch(8)@1GB/s/rng(4)@1GB/s", "level 2: kind 'rng': expected switch, ring or mesh"),
        ("switch(8)", "level 1: expected kind(size)@rate,latency but found 'switch(8)'"),
        ("@5GB/s", "level 1: expected kind(size)@rate,latency but found '@5GB/s'"),
        ("switch(0)@1GB/s", "level 1: size 0: expected a whole number from 1 up"),
        ("switch(-8)@1GB/s", "level 1: size '-8': expected a whole number from 1 up"),
        ("switch(8.5)@1GB/s", "level 1: size '8.5': expected a whole number from 1 up"),
        ("switch()@1GB/s", "level 1: size '': expected a whole number from 1 up"),
        ("switch(8)@-1GB/s", "level 1: rate '-1GB/s': expected a positive rate"),
        ("switch(8)@0GB/s", "level 1: rate '0GB/s': expected a positive rate"),
        ("switch(8)@nanGB/s", "level 1: rate 'nanGB/s': expected a positive rate"),
        ("switch(8)@fast", "level 1: rate 'fast': expected a positive rate"),
        ("switch(8)@1GB/s,-1ns", "level 1: latency '-1ns': expected a time of zero or more"),
        ("switch(8)@1GB/s,", "level 1: latency '': expected a time of zero or more"),
        ("switch(8)@1GB/s,1ns/8", "level 1: latency '1ns/8': expected a time of zero or more"),
    ],
)
def test_a_mistake_is_named_where_it_stands(spec, message):
    with pytest.raises(PlatformError) as caught:
        platform(spec)
    assert message in caught.value.message
    assert spec in caught.value.message
    assert "\n" not in caught.value.message


def test_a_wrong_kind_suggests_the_nearest():
    with pytest.raises(PlatformError) as caught:
        parse_network("swich(8)@1GB/s")
    assert "'switch'" in caught.value.hint
