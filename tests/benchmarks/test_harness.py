import json

import pytest

from benchmarks import find_bench, questions
from benchmarks.cost import cost_of
from benchmarks.harness import measure
from benchmarks.machine import append, machine, record
from benchmarks.rows import Row
from weft.errors import RunError, RunTimeoutError, UnknownNameError


def contestants(log, **times):
    """Works that say their seconds from a list and write down that they ran."""

    def work(name, left):
        log.append(name)
        return left.pop(0)

    return {name: (lambda n=name, left=list(t): work(n, left)) for name, t in times.items()}


def test_contestants_take_turns():
    log: list[str] = []
    both = contestants(log, weft=[1] * 4, peer=[2] * 4)
    measure("b", {}, both["weft"], {"peer": both["peer"]}, rounds=3, warmups=1)
    assert log == ["weft", "peer"] * 4


def test_a_ratio_is_the_median_of_the_rounds():
    both = contestants([], weft=[1, 10, 1], peer=[3, 20, 100])
    row = measure("b", {}, both["weft"], {"peer": both["peer"]}, rounds=3, warmups=0)
    assert row.peers["peer"].ratio == 3  # not the ratio of the medians, 20
    assert row.peers["peer"].seconds == 20
    assert row.seconds == 1


def test_work_without_a_clock_is_timed():
    row = measure("b", {}, lambda: None, rounds=3)
    assert all(0 < seconds < 1 for seconds in row.times)


def test_spread_is_between_the_quartiles():
    assert Row("b", {}, (1.0, 2.0, 3.0, 4.0, 100.0)).spread == 2
    assert Row("b", {}, (1.0,)).spread == 0


def test_a_result_has_the_agreed_keys():
    both = contestants([], weft=[1], peer=[2])
    row = measure(
        "b", {"ranks": 2}, both["weft"], {"peer": both["peer"]}, rounds=1, warmups=0, error=0.5
    )
    assert row.as_result() == {
        "bench": "b",
        "case": {"ranks": 2},
        "seconds": 1,
        "spread": 0,
        "peers": {"peer": {"seconds": 2, "ratio": 2}},
        "basis": "measured",
        "error": 0.5,
    }


def test_a_record_says_where_and_when(tmp_path):
    path = tmp_path / "results" / "b.jsonl"
    append(path, [Row("b", {"ranks": 2}, (1.0, 3.0))])
    append(path, [Row("b", {"ranks": 4}, (1.0,))])
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert first.keys() >= {"format", "bench", "case", "median", "spread", "runs", "commit", "date"}
    assert first["median"] == 2
    assert first["runs"] == 2
    assert first["machine"] == machine()
    assert second["case"] == {"ranks": 4}


def test_a_number_that_is_none_is_recorded_as_null(tmp_path):
    more = {"error": float("nan"), "all": [1.0, float("inf")]}
    append(tmp_path / "b.jsonl", [Row("b", {}, (1.0,), more=more)])
    written = json.loads((tmp_path / "b.jsonl").read_text())
    assert (written["error"], written["all"]) == (None, [1.0, None])


def test_a_record_is_of_a_numbered_format():
    assert record(Row("b", {}, (1.0,)))["format"] == 1


def test_a_machine_is_described():
    assert machine().keys() == {"cpu", "cores", "memory", "os", "python"}
    assert machine()["memory"] > 1 << 20


def test_the_cost_of_a_call_is_that_of_a_fresh_process():
    cost = cost_of("math:hypot", 3, 4)
    assert cost.value == 5
    assert cost.cpu < cost.process_cpu
    assert cost.peak_bytes > 1 << 20


def test_a_large_allocation_shows_in_the_peak():
    least = cost_of("math:hypot", 3, 4).peak_bytes
    assert cost_of("operator:mul", "x", 32 << 20).peak_bytes > least + (30 << 20)


def test_a_call_that_fails_says_why():
    with pytest.raises(RunError, match="parse 'x'"):
        cost_of("weft.units:parse_size", "x")


def test_a_call_that_does_not_end_is_given_up():
    with pytest.raises(RunTimeoutError, match="time:sleep"):
        cost_of("time:sleep", 60, timeout=0.1)


def test_every_benchmark_asks_a_question():
    assert {"simulator", "startup"} <= questions().keys()
    for name, question in questions().items():
        assert find_bench(name).question == question
        assert question.endswith("?")


def test_a_wrong_name_is_answered_with_the_nearest():
    with pytest.raises(UnknownNameError, match="benchmark 'starup'") as caught:
        find_bench("starup")
    assert caught.value.hint == "Did you mean 'startup'?"
