import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.report.pictures import drawn, unpacked
from tests.spans import called, handshake, overlapping, submitted
from weft.report.interactive_timeline import busiest, timeline_section
from weft.report.packing import unpack
from weft.report.picture import (
    KINDS,
    Mark,
    Picture,
    PictureLine,
    lightened,
    packed,
    picture_of,
    rows_of,
)

some_spans = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 30), st.integers(0, 9)),
    min_size=1,
).map(lambda each: [(line, name, start, start + length) for line, name, start, length in each])


@given(some_spans)
def test_every_span_arrives_in_the_page_as_it_was(spans):
    picture = drawn(spans)
    zero = min(start for _, _, start, _ in spans)
    want = [(a, f"name {b}", (c - zero) * 10**9, (d - zero) * 10**9) for a, b, c, d in spans]
    assert sorted(unpacked(packed(picture))) == sorted(want)


@given(some_spans)
def test_spans_of_a_row_never_overlap(spans):
    line, _, start, end = (np.array(column) for column in zip(*spans, strict=True))
    row = rows_of(line, start, end)
    for key in {*zip(line.tolist(), row.tolist(), strict=True)}:
        mine = (line == key[0]) & (row == key[1])
        order = np.lexsort((end[mine], start[mine]))
        assert (start[mine][order][1:] >= end[mine][order][:-1]).all()


def test_what_is_inside_another_stands_below_it():
    line, start, end = np.zeros(3, int), np.array([0, 1, 2]), np.array([9, 5, 3])
    assert rows_of(line, start, end).tolist() == [0, 1, 2]


@pytest.mark.parametrize("made", [overlapping, handshake, called, submitted])
def test_a_timeline_shows_what_takes_time(made):
    timeline = made()
    picture = picture_of(timeline)
    assert picture.num_spans == (timeline.end > timeline.start).sum()
    assert picture.end.max() - picture.start.min() >= timeline.makespan


def test_queues_become_lines_and_kinds_follow_the_activity():
    picture = picture_of(overlapping())
    assert [line.title for line in picture.lines] == ["stream0", "copy0"]
    assert [KINDS[kind] for kind in picture.kind] == ["communication"] * 2 + ["computation"]


def test_the_host_is_shown_on_request():
    assert [line.quiet for line in picture_of(submitted()).lines] == [True, False]


def test_the_critical_path_points_to_the_same_spans_in_the_page():
    timeline = handshake()
    picture = picture_of(timeline)
    data = packed(picture)
    spans = unpacked(data)
    want = {timeline.span(i).name for i in timeline.critical_path() if timeline.span(i).end}
    assert want >= {spans[i][1] for i in data["paths"][0]} > set()


def test_notes_and_marks_arrive_where_they_belong():
    notes = {"waits": np.array([0.0, 2e-9]), "nbytes": np.array([0, 7])}
    spans = [(0, 0, 5, 6), (0, 1, 1, 2)]
    data = packed(drawn(spans, **notes, marks=[Mark("step 1", 1.0, 6.0)], details={0: "x"}))
    assert (unpack(data["noted"]), unpack(data["wait"]), unpack(data["nbytes"])) == ([0], [2], [7])
    assert data["marks"] == [["step 1", "", 0, 5 * 10**9]]
    assert data["details"] == {"1": "x"}


def test_a_picture_of_nothing_is_empty():
    none = np.zeros(0, np.int64)
    times = np.zeros(0, np.float64)
    empty = Picture([], [], none, none, none, times, times, times, none)
    assert packed(empty)["gap"] == ""
    assert busiest(empty) == []


def test_the_table_counts_and_adds_up_by_name():
    rows = busiest(drawn([(0, 3, 0, 4), (1, 3, 1, 2), (2, 1, 0, 3)]))
    assert [(row["name"], row["count"], row["total"], row["longest"]) for row in rows] == [
        ("name 3", 2, 5.0, 4.0),
        ("name 1", 1, 3.0, 3.0),
    ]


def test_the_shortest_of_quiet_lines_are_left_out_first():
    spans = [(0, 0, 0, 1), (0, 1, 2, 9), (1, 2, 0, 5), (1, 3, 5, 9), (1, 4, 9, 10)]
    lines = [PictureLine("r", "stream 1"), PictureLine("r", "host", quiet=True)]
    picture = drawn(spans, paths=[[4]], details={1: "kept", 3: "gone"}, of=lines)
    light = lightened(picture, 4)
    assert sorted(light.name.tolist()) == [0, 1, 2, 4]
    assert [light.name[i] for i in light.paths[0]] == [4]
    assert {light.name[i]: text for i, text in light.details.items()} == {1: "kept"}
    assert light.left_out == 1
    assert lightened(picture, 5) is picture


def test_a_section_shows_no_more_spans_than_it_may():
    (drawing,) = timeline_section(drawn([(0, 0, 0, 4), (0, 1, 5, 6)]), "t", "", most=1).drawings
    assert '"leftOut":1' in drawing
