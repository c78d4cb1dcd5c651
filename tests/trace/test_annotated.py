"""An analysis as a trace for Perfetto: all that was recorded, and what weft says of it."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise

import pytest

from tests.trace.events import all_reduce, job, kernel, launch, mark, written
from weft.cli import main
from weft.trace import analyze
from weft.trace.annotated import annotated_json, write_annotated


def tracks(analysis):
    """Spans (name, start, end in microseconds) by process and thread name."""
    events = json.loads(annotated_json(analysis))["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = defaultdict(list)
    for e in events:
        if e["ph"] == "X":
            span = (e["name"], e["ts"], e["ts"] + e["dur"])
            found[e["pid"], names[e["pid"], e["tid"]]].append(span)
    return found


def one_step():
    return [
        mark(1, 0, 100),
        launch(1, 1),
        kernel(10, 30, correlation=1),
        launch(2, 2),
        all_reduce(30, 40, correlation=2),
        kernel(90, 5, "last"),
    ]


def test_a_trace_without_events_is_written_too(tmp_path):
    assert not tracks(analyze(written(tmp_path / "a.json", [])))


def test_what_is_exposed_and_idle_stands_above_the_streams(tmp_path):
    found = tracks(analyze(written(tmp_path / "a.json", one_step())))
    assert found[0, "weft: exposed communication"] == [("exposed", 40.0, 70.0)]
    assert found[0, "weft: idle"] == [("idle", 70.0, 90.0)]
    assert found[0, "weft: steps"] == [("ProfilerStep#1", 0.0, 100.0)]
    assert [name for name, *_ in found[0, "stream 7"]] == ["gemm", "last"]
    assert len(found[0, "stream 20"]) == 1


def test_a_collective_waits_and_then_moves(tmp_path):
    found = tracks(analyze(job(tmp_path, (200.0, 700.0))))
    whole, waits, moves = found[0, "weft: collectives"][:3]
    assert whole == ("all_reduce", 200.0, 900.0)
    assert waits == ("waiting for other ranks", 200.0, pytest.approx(700.0))
    assert moves == ("moving bytes", pytest.approx(700.0), 900.0)


def test_ranks_are_processes_on_one_clock(tmp_path):
    found = tracks(analyze(job(tmp_path, (200.0, 700.0), clocks=(0.0, 5e6))))
    ends = [[end for *_, end in found[rank, "stream 20"]] for rank in (0, 1)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-3)


def test_the_critical_path_follows_itself_in_time(tmp_path):
    path = tracks(analyze(written(tmp_path / "a.json", one_step())))[0, "weft: critical path"]
    names = [name for name, *_ in path]
    assert names[0] == "cudaLaunchKernel"
    assert names[-1].startswith("nccl")  # what has no launch belongs to no step
    assert all(a[2] <= b[1] + 1e-6 for a, b in pairwise(path))


def test_launches_lead_to_what_they_launched(tmp_path):
    analysis = analyze(written(tmp_path / "a.json", one_step()))
    events = json.loads(annotated_json(analysis))["traceEvents"]
    begins = {e["id"]: e["ts"] for e in events if e["ph"] == "s"}
    ends = {e["id"]: e["ts"] for e in events if e["ph"] == "f"}
    assert sorted((begins[i], ends[i]) for i in begins) == [(1.0, 10.0), (2.0, 30.0)]


def test_halves_of_pairs_in_names_fit_into_the_file(tmp_path):
    events = [*one_step(), kernel(95, 1, "half \ud800 </script>")]
    assert b"</script>" in annotated_json(analyze(written(tmp_path / "a.json", events)))


def test_a_packed_file_is_written_by_its_suffix(tmp_path):
    analysis = analyze(written(tmp_path / "a.json", one_step()))
    write_annotated(tmp_path / "out.json.gz", analysis)
    assert gzip.decompress((tmp_path / "out.json.gz").read_bytes()) == annotated_json(analysis)


@pytest.mark.parametrize(
    ("name", "begins"),
    [("r.html", "<!doctype html>"), ("r.json", '{"traceEvents":['), ("r.csv", "file,rank,")],
)
def test_the_verb_writes_what_the_suffix_asks_for(tmp_path, capsys, name, begins):
    trace = written(tmp_path / "a.json", one_step())
    out = tmp_path / name
    assert main(["analyze", str(trace), "-o", str(out)]) in (0, None)
    assert out.read_text().startswith(begins)
    assert f"wrote {out}" in capsys.readouterr().out
