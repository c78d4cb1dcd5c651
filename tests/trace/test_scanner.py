"""The native scanner: pieces of any size, text that profilers get wrong, files that are damaged."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trace.events import event, kernel, text
from weft import _core


def scanned(raw, size=1 << 20):
    scanner = _core.TraceScanner()
    for at in range(0, len(raw), size):
        scanner.feed(raw[at : at + size])
    return scanner, scanner.finish()


def rows(scanner):
    columns = scanner.columns()
    names = [name.decode(errors="replace") for name in scanner.names()]
    return [
        (names[name], start, duration)
        for name, start, duration in zip(
            columns["name"].tolist(),
            columns["start_ns"].tolist(),
            columns["duration_ns"].tolist(),
            strict=True,
        )
    ]


EVENTS = [kernel(10, 5, f"k{i % 3}", correlation=i, grid=[i % 2, 1, 1]) for i in range(20)]
SEVERAL = text([*EVENTS, {"ph": "s", "id": 1, "ts": 1}, {"ph": "M", "name": "process_name"}])


@given(size=st.integers(1, 300))
def test_a_trace_is_the_same_in_pieces_of_any_size(size):
    scanner, whole = scanned(SEVERAL, size)
    other, _ = scanned(SEVERAL)
    assert whole
    assert scanner.num_events == 22
    assert rows(scanner) == rows(other)
    assert scanner.details() == other.details()
    assert scanner.rest() == other.rest()


@pytest.mark.parametrize(
    ("written", "nanoseconds"),
    [
        ("1661203462598738", 1661203462598738000),
        ("1661203462598738.123", 1661203462598738123),
        ("4458676522690.655", 4458676522690655),
        ("0.001", 1),
        ("-2.5", -2500),
        ('"12.5"', 12500),
        ("1e3", 1000000),
        ("1700000000000000123", 1700000000000000123),
    ],
)
def test_times_are_exact_to_the_nanosecond(written, nanoseconds):
    raw = b'{"traceEvents":[{"ph":"X","name":"a","ts":%s,"dur":1}]}' % written.encode()
    scanner, _ = scanned(raw)
    assert rows(scanner)[0][1] == nanoseconds


@pytest.mark.parametrize("wrong", ["NaN", "Infinity", '""', '"x"', "null", "[]", "1e400"])
def test_an_event_without_a_time_is_left_out_and_counted(wrong):
    raw = b'{"traceEvents":[{"ph":"X","name":"a","ts":%s,"dur":1}]}' % wrong.encode()
    scanner, whole = scanned(raw)
    assert whole
    assert (scanner.num_events, len(rows(scanner))) == (1, 0)
    assert scanner.losses()["num_untimed"] == 1


@pytest.mark.parametrize(
    "name",
    [r"C:\new", "tab\there", "line\nbreak", r"bad \x escape", 'quote \\" inside', "\x00\x01"],
)
def test_names_that_are_no_json_are_read(name):
    raw = b'{"traceEvents":[{"ph":"X","name":"%s","ts":1,"dur":2}]}' % name.encode()
    scanner, whole = scanned(raw)
    assert whole
    assert rows(scanner) == [(name, 1000, 2000)]


def test_numbers_that_are_none_do_not_matter_in_arguments():
    args = b'{"occupancy":NaN,"x":-inf,"stream":7}'
    raw = b'{"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":2,"args":%s}]}' % args
    scanner, whole = scanned(raw)
    assert whole
    assert scanner.columns()["stream"].tolist() == [7]


@given(cut=st.integers(0, len(SEVERAL)))
def test_a_cut_file_keeps_its_complete_events(cut):
    scanner, whole = scanned(SEVERAL[:cut])
    complete = SEVERAL[:cut].count(b'"ph": "X"')
    assert complete - 1 <= len(rows(scanner)) <= complete
    assert whole == (cut == len(SEVERAL))


@given(place=st.integers(0, len(SEVERAL) - 1), byte=st.integers(0, 255))
def test_a_wrong_byte_costs_at_most_two_events(place, byte):
    raw = SEVERAL[:place] + bytes([byte]) + SEVERAL[place + 1 :]
    scanner, _ = scanned(raw)
    # A wrong byte before the events may hide them all, and so does a bracket that ends their list.
    if place > SEVERAL.index(b"traceEvents") + 20 and byte != ord("]"):
        assert len(rows(scanner)) >= 18
    assert scanner.num_events <= 24


@given(raw=st.binary(max_size=400))
def test_any_bytes_are_read_without_harm(raw):
    for text_ in (raw, b"[" + raw, b'{"traceEvents":[' + raw, b'{"traceEvents":[{"ph":"X",' + raw):
        scanner, _ = scanned(text_, 7)
        assert len(rows(scanner)) <= scanner.num_events


@given(raw=st.text(alphabet='{}[],:"\\ phXtsdur01.', max_size=300))
def test_text_that_looks_like_events_is_read_without_harm(raw):
    scanner, _ = scanned(b'{"traceEvents":[' + raw.encode(), 11)
    assert len(rows(scanner)) <= scanner.num_events


def test_depth_costs_no_stack():
    deep = b'{"traceEvents":[{"ph":"X","name":"a","ts":1,"dur":2,"args":' + b"[" * 10**6
    scanner, whole = scanned(deep + b"]" * 10**6 + b"}]}")
    assert whole
    assert rows(scanner) == [("a", 1000, 2000)]


def test_what_never_ends_is_given_up():
    hostile = b'{"traceEvents":[' + b'{"a":[' * 3_000
    scanner, whole = scanned(hostile)
    assert not whole
    assert scanner.num_events == 0


def test_a_list_without_an_object_around_it_is_a_trace():
    scanner, whole = scanned(json.dumps(EVENTS).encode())
    assert whole
    assert scanner.num_events == 20


@given(
    spans=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 10)), max_size=30
    )
)
def test_a_parent_holds_its_child_and_is_the_innermost_of_those_that_nest(spans):
    thread = np.array([t for t, _, _ in spans], np.int32)
    start = np.array([s for _, s, _ in spans], float)
    end = np.array([s + d for _, s, d in spans], float)
    parent = _core.nest(thread, start, end)
    for child, outer in enumerate(parent.tolist()):
        if outer >= 0:
            assert thread[outer] == thread[child]
            assert start[outer] <= start[child] <= end[child] <= end[outer]


def test_a_million_nested_spans_are_nested_in_a_moment():
    count = 10**6
    thread = np.zeros(count, np.int32)
    start, end = np.arange(count, dtype=float), np.arange(2 * count, count, -1, dtype=float)
    parent = _core.nest(thread, start, end)
    assert parent.tolist() == [-1, *range(count - 1)]


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="different lengths"):
        _core.nest(np.zeros(2, np.int32), np.zeros(1), np.zeros(1))


def test_arguments_that_matter_are_kept_once():
    events = [event(correlation=i, grid=[1, 2, 3], **{"warps per SM": i}) for i in range(9)]
    scanner, _ = scanned(text(events))
    assert scanner.details() == [b'{"grid":[1, 2, 3]']
    assert scanner.columns()["correlation"].tolist() == list(range(9))
