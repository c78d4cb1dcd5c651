"""Traces made up for benchmarks, and the benchmark that reads them."""

import pytest

from benchmarks import environments, traces
from benchmarks.rows import Options
from benchmarks.synthetic_trace import EVENTS_OF_A_STEP, write_bytes, write_events
from weft.errors import RunError, UnknownNameError
from weft.trace import analyze


def test_a_made_up_trace_is_what_it_says(tmp_path):
    path = write_events(tmp_path / "a.json.gz", 3 * EVENTS_OF_A_STEP)
    rank = analyze(path).ranks[0]
    assert rank.trace.num_events == 3 * EVENTS_OF_A_STEP + 1
    assert [step.split.num_gpu_events for step in rank.steps] == [500] * 3
    assert not rank.trace.losses
    assert {use.kind for use in rank.collectives} == {"all_reduce"}


def test_a_made_up_trace_is_as_large_as_asked_for(tmp_path):
    path = write_bytes(tmp_path / "a.json", 3_000_000)
    assert 3_000_000 <= path.stat().st_size < 4_500_000
    assert not analyze(path).ranks[0].trace.losses


@pytest.mark.multiprocess
def test_a_trace_is_measured_in_a_process_of_its_own():
    options = Options(sizes=(200_000,), rounds=1)
    (row,) = traces.run(options)
    assert traces.count_rows(options) == 1
    assert row.more["events"] == EVENTS_OF_A_STEP + 1
    assert row.more["peak_bytes"] > 1 << 20


def test_an_unknown_peer_is_refused():
    with pytest.raises(UnknownNameError, match="unknown peer"):
        list(traces.run(Options(against=("nobody",))))


def test_a_peer_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    python = environments.root() / "traceinsight" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\necho 'no such module' >&2\nexit 3\n")
    python.chmod(0o755)
    (environments.root() / "traceinsight" / "complete").touch()
    with pytest.raises(RunError, match="no such module"):
        traces._ask_traceinsight(tmp_path / "a.json")
