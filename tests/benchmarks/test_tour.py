"""The benchmark of the tour: what it starts, and what it leaves behind."""

import subprocess

import pytest

from benchmarks import tour
from benchmarks.rows import Options


@pytest.fixture
def taken(monkeypatch):
    calls = []

    def take(*, again):
        calls.append(again)
        return 2.0 + len(calls), 0

    monkeypatch.setattr(tour, "_tour", take)
    return calls


def test_the_first_tour_of_a_kind_measures_anew(taken):
    rows = list(tour.run(Options(rounds=3)))
    assert taken == [True, False, False, True, False, False]
    assert [row.case["calibrated"] for row in rows] == [False, True, False, True]
    assert [len(row.times) for row in rows] == [1, 2, 1, 2]
    assert all(row.more["met"] for row in rows)
    assert tour.count_rows(Options(rounds=3)) == len(rows)


def test_one_bad_end_is_told(monkeypatch):
    ends = iter([(1.0, 0), (1.0, 0), (1.0, 1), (1.0, 0), (1.0, 0), (tour.LIMIT, 0)])
    monkeypatch.setattr(tour, "_tour", lambda **_: next(ends))
    assert [row.more["met"] for row in tour.run(Options(rounds=3))] == [True, False, True, False]


def test_the_busy_core_is_given_back(monkeypatch):
    started = []
    popen = subprocess.Popen

    def start(*words, **more):
        started.append(popen(*words, **more))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", start)
    with pytest.raises(KeyboardInterrupt), tour._busy_core():
        raise KeyboardInterrupt
    assert started[0].returncode is not None
