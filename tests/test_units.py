import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import SizeError, UsageError
from weft.units import (
    format_rate,
    format_size,
    format_time,
    parse_rate,
    parse_size,
    parse_sizes,
    parse_time,
)

positive = st.floats(1e-15, 1e24, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("1", 1),
        ("4_096", 4096),
        ("1B", 1),
        ("64k", 65536),
        ("1KiB", 1024),
        ("1kib", 1024),
        ("1kB", 1000),
        (" 1.5 MB ", 1_500_000),
        (".5KiB", 512),
        ("1GiB", 2**30),
        ("2T", 2**41),
        ("1e3", 1000),
        ("1.001KiB", 1025),
    ],
)
def test_a_size_is_read(text, nbytes):
    assert parse_size(text) == nbytes


@pytest.mark.parametrize(
    "text", ["", " ", "KiB", "-1", "1.5", "1XiB", "1KiB/s", "one", "1e99", "1,5", "٣", "nan", "1e"]
)
def test_what_is_no_size_is_refused_with_what_was_expected(text):
    with pytest.raises(SizeError) as caught:
        parse_size(text)
    assert repr(text) in str(caught.value)
    assert "64KiB" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1KiB", [1024]),
        ("1KiB,64KiB", [1024, 65536]),
        ("1KiB:8KiB", [1024, 2048, 4096, 8192]),
        ("3:20", [3, 6, 12]),
        ("5:5", [5]),
        ("7, 1k:2k", [7, 1024, 2048]),
    ],
)
def test_lists_and_ranges_of_sizes_are_read(text, sizes):
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "1KiB,", "2:1", "0:8", ":8", "1:", "1:2:4"])
def test_an_empty_list_or_range_is_refused(text):
    with pytest.raises(SizeError):
        parse_sizes(text)


@given(st.integers(1, 2**62), st.integers(1, 2**62))
def test_a_range_doubles_up_to_its_end(a, b):
    first, last = sorted((a, b))
    sizes = parse_sizes(f"{first}:{last}")
    assert sizes[0] == first
    assert all(y == 2 * x for x, y in pairwise(sizes))
    assert sizes[-1] <= last < 2 * sizes[-1]


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50GiB/s", 50 * 2**30),
        ("400Gbit/s", 50e9),
        ("1.5 TB/s", 1.5e12),
        ("8bit/s", 1),
        ("10gbit", 1.25e9),
        ("10B/s", 10),
        ("10kB/s", 10_000),
    ],
)
def test_a_rate_is_read(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "50", "50GiB", "-1GiB/s", "0GB/s", "1e-999B/s", "1e999B/s"])
def test_what_is_no_rate_is_refused_with_what_was_expected(text):
    with pytest.raises(UsageError) as caught:
        parse_rate(text)
    assert "400Gbit/s" in caught.value.hint


def test_a_rate_that_may_be_bits_or_bytes_is_refused():
    with pytest.raises(UsageError, match="bits or bytes"):
        parse_rate("400Gb/s")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("500ns", 5e-7), ("2us", 2e-6), ("2µs", 2e-6), ("1.5ms", 1.5e-3), ("3 s", 3), ("0s", 0)],
)
def test_a_time_is_read(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5 hours", "-1us", "1e999s"])
def test_what_is_no_time_is_refused_with_what_was_expected(text):
    with pytest.raises(UsageError) as caught:
        parse_time(text)
    assert "500ns" in caught.value.hint


@given(st.integers(0, 2**62))
def test_a_written_size_reads_back_to_four_digits(nbytes):
    back = parse_size(format_size(nbytes))  # of whole bytes
    assert math.isclose(back, nbytes, rel_tol=5e-4, abs_tol=1)


@given(st.integers(0, 999), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_a_whole_number_of_a_unit_reads_back_exactly(count, unit):
    nbytes = parse_size(f"{count}{unit}")
    assert parse_size(format_size(nbytes)) == nbytes


@given(positive)
def test_a_written_rate_reads_back_to_four_digits(rate):
    assert math.isclose(parse_rate(format_rate(rate)), rate, rel_tol=5.1e-4)


@given(positive)
def test_a_written_time_reads_back_to_four_digits(seconds):
    assert math.isclose(parse_time(format_time(seconds)), seconds, rel_tol=5.1e-4)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        (format_size(1023.99 * 1024), "1 MiB"),
        (format_size(1023), "1023 B"),
        (format_size(-2048), "-2 KiB"),
        (format_time(0.99999e-3), "1 ms"),
        (format_time(86400), "86400 s"),
        (format_time(2e-12), "0.002 ns"),
        (format_rate(0), "0 B/s"),
    ],
)
def test_numbers_are_written_with_the_unit_that_fits(text, written):
    assert text == written
