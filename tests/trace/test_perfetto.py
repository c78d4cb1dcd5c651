import gzip
import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spans import called, copy, handshake, overlapping, schedule, submitted, timed
from weft.schedule import Kernel, Launch
from weft.trace import perfetto_json, write_perfetto


def events(*timelines, phase="X"):
    return [e for e in json.loads(perfetto_json(*timelines))["traceEvents"] if e["ph"] == phase]


def names(*timelines, what="thread_name"):
    found = events(*timelines, phase="M")
    return {(e["pid"], e["tid"]): e["args"]["name"] for e in found if e["name"] == what}


def check_nesting(timeline):
    """On one thread each span begins after the one before ended, or ends before it does."""
    threads: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in events(timeline):
        start, end = round(event["ts"] * 1000), round((event["ts"] + event["dur"]) * 1000)
        threads.setdefault((event["pid"], event["tid"]), []).append((start, -end))
    for spans in threads.values():
        open_ends: list[int] = []
        for start, negative_end in sorted(spans):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or -negative_end <= open_ends[-1]
            open_ends.append(-negative_end)


def test_a_span_keeps_its_times_bytes_and_kind():
    copies = [e for e in events(overlapping()) if e["name"] == "Copy"]
    assert [(e["ts"], e["dur"]) for e in copies] == [(3e6, 3e6), (8e6, 1e6)]
    assert [e["args"] for e in copies] == [{"id": 0, "bytes": 8}, {"id": 1, "bytes": 16}]
    assert {e["cat"] for e in copies} == {"communication"}


def test_joules_are_written_where_there_are_some():
    timeline = timed(schedule(("copy0", (copy(), copy()))), [(0, 1), (1, 2)], joules=[0.0, 1.5])
    assert [e["args"].get("joules") for e in events(timeline)] == [None, 1.5]


def test_times_have_nanoseconds():
    timeline = timed(schedule(("copy0", (copy(),))), [(1.234567891, 1.234567895)], origin=0.0)
    assert b'"ts":1234567.891,"dur":0.004' in perfetto_json(timeline)


def test_ranks_are_processes_and_queues_threads_in_order():
    made = schedule(
        ("copy0", (copy(),)),
        ("copy10", (copy(),)),
        ("copy2", (copy(),)),
        ("stream0", ()),
        ("host", ()),
    )
    timeline = timed(made, [(0, 1)] * 3, represents=[8])
    assert names(timeline, what="process_name") == {(0, 0): "rank 0 (stands for 8)"}
    assert list(names(timeline).values()) == ["copy0", "copy2", "copy10"]


def test_lanes_are_threads_of_their_own():
    launch = Launch(((copy(), copy()), (Kernel("slice"),)))
    timeline = timed(schedule(("stream0", (launch,))), [(0, 9), (0, 2), (2, 4), (1, 8)])
    assert list(names(timeline).values()) == ["stream0", "stream0 lane 0", "stream0 lane 1"]
    check_nesting(timeline)


def test_an_arrow_leads_from_signal_to_wait():
    starts, ends = events(handshake(), phase="s"), events(handshake(), phase="f")
    assert [(e["pid"], e["ts"]) for e in starts] == [(1, 4e6), (0, 2e6)]
    assert [(e["pid"], e["ts"]) for e in ends] == [(0, 5e6 - 0.001), (1, 5e6)]
    assert [e["id"] for e in starts] == [e["id"] for e in ends]


def test_what_was_prelaunched_does_not_get_a_negative_time():
    assert min(e["ts"] for e in events(submitted(hold=True))) == 0


def test_sends_in_flight_together_get_lines_apart():
    made = schedule(("nic0", (copy(), copy(), copy())))
    timeline = timed(made, [(0, 3), (1, 4), (3, 5)])
    assert list(names(timeline).values()) == ["nic0", "nic0 (2)"]
    check_nesting(timeline)


def test_two_timelines_stand_one_above_the_other():
    both = names(handshake(), overlapping(), what="process_name")
    first, last = handshake().schedule, overlapping().schedule
    assert list(both.values()) == [f"{first}: rank 0", f"{first}: rank 1", f"{last}: rank 0"]
    assert len(both) == 3


def test_processes_are_named_after_what_they_are():
    text = json.loads(perfetto_json(overlapping(), overlapping(), labels=("before", "planned")))
    named = [e["args"]["name"] for e in text["traceEvents"] if e["name"] == "process_name"]
    assert named == ["before: rank 0", "planned: rank 0"]


def test_calls_nest():
    check_nesting(called())


def test_about_says_what_this_is():
    about = json.loads(perfetto_json(overlapping()))["otherData"]["weft"]
    assert about == [
        {"schedule": "hand-made", "platform": "paper", "basis": "predicted", "ranks": 1}
    ]


def test_no_timeline_is_an_empty_trace():
    assert json.loads(perfetto_json())["traceEvents"] == []


def test_odd_names_are_escaped():
    timeline = timed(schedule(("stream0", (Kernel('a "b"\n'),))), [(0, 1)])
    assert events(timeline)[0]["name"] == 'a "b"\n'


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_the_suffix_decides_about_compression(tmp_path, name):
    write_perfetto(tmp_path / name, overlapping())
    raw = (tmp_path / name).read_bytes()
    text = gzip.decompress(raw) if name.endswith("gz") else raw
    assert text == perfetto_json(overlapping())


@given(st.lists(st.floats(0, 1e-3), min_size=2, max_size=12).map(sorted))
def test_rounding_keeps_the_order_of_a_queue(times):
    pairs = list(pairwise(times))
    made = schedule(("copy0", (copy(),) * len(pairs)))
    timeline = timed(made, pairs)
    assert set(names(timeline).values()) == {"copy0"}
    check_nesting(timeline)
