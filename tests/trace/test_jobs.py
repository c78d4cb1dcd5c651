"""Traces of several ranks: who belongs to whom, on which clock."""

import json

import pytest

from tests.trace.events import all_reduce, job, launch, one_step, written
from weft.trace import analyze


def test_the_last_rank_makes_the_others_wait(tmp_path):
    analysis = analyze(job(tmp_path, (200.0, 700.0)))
    early, late = analysis.ranks
    assert [r.basis for r in analysis.ranks] == ["measured", "measured"]
    assert early.total.moving == pytest.approx(3 * 200e-6)
    assert early.total.waiting == pytest.approx(3 * 500e-6)
    assert late.total.waiting == pytest.approx(0)
    assert [(s.rank, s.num_last) for s in analysis.stragglers] == [(1, 3)]
    assert "kernels took" in analysis.stragglers[0].why
    assert "rank 1" in analysis.advice[0].title
    assert analysis.aligned_within == pytest.approx(0, abs=1e-9)


def test_clocks_that_disagree_are_moved(tmp_path):
    apart = analyze(job(tmp_path, (200.0, 700.0), clocks=(0.0, 5e6)))
    assert apart.ranks[0].total.waiting == pytest.approx(3 * 500e-6)
    assert apart.aligned_within == pytest.approx(0, abs=1e-9)
    assert any("clock of rank 1 was" in note for note in apart.notes)


def test_clocks_that_drift_apart_are_brought_together(tmp_path):
    paths = job(tmp_path, (200.0, 700.0), steps=30)
    whole = json.loads(paths[1].read_text())
    for each in whole["traceEvents"]:
        each["ts"] *= 1.01
    paths[1].write_text(json.dumps(whole))
    analysis = analyze(paths)
    assert analysis.aligned_within is not None
    assert analysis.aligned_within < 10e-6
    assert analysis.ranks[0].total.waiting == pytest.approx(30 * 500e-6, rel=0.03)


def test_collectives_match_by_their_numbers_when_a_file_begins_later(tmp_path):
    paths = []
    for rank, first in enumerate((0, 1)):
        events = []
        for step in range(first, 4):
            events += [
                launch(1000 * step + 1, step),
                all_reduce(1000 * step + 100 * (1 + rank), 900 - 100 * (1 + rank), step, Seq=step),
            ]
        paths.append(written(tmp_path / f"{rank}.json", events, rank=rank))
    early, late = analyze(paths).ranks
    assert late.total.waiting == pytest.approx(0, abs=1e-9)
    assert [use.basis for use in early.collectives] == ["estimated", *["measured"] * 3]
    assert [use.waiting for use in early.collectives[1:]] == pytest.approx([100e-6] * 3)


@pytest.mark.parametrize("missing", [1, 3])
def test_a_file_that_begins_later_is_matched_by_sizes(tmp_path, missing):
    paths = []
    for rank, first in enumerate((0, missing)):
        events = []
        for step in range(first, 9):
            size, after = 1024 * (1 + step % 4), 100 * (1 + rank)
            end = 1000 * step + 900
            events += [
                launch(1000 * step, step),
                all_reduce(end - 800 + after, 800 - after, step, size),
            ]
        paths.append(written(tmp_path / f"{rank}.json", events, rank=rank))
    early, late = analyze(paths).ranks
    assert late.total.waiting == pytest.approx(0, abs=1e-9)
    measured = [use.waiting for use in early.collectives if use.basis == "measured"]
    assert measured == pytest.approx([100e-6] * (9 - missing))


def test_old_files_have_the_rank_of_their_name(tmp_path):
    paths = job(tmp_path, (200.0, 700.0))
    for path in paths:
        whole = json.loads(path.read_text())
        del whole["distributedInfo"]
        path.write_text(json.dumps(whole))
    analysis = analyze(paths)
    assert [rank.rank for rank in analysis.ranks] == [0, 1]
    assert analysis.ranks[0].total.waiting == pytest.approx(3 * 500e-6)


def test_one_rank_of_eight_is_an_estimate_and_says_so(tmp_path):
    analysis = analyze(written(tmp_path / "a.json", one_step(), world_size=8))
    assert any("1 of 8 ranks" in note for note in analysis.notes)
    assert analysis.ranks[0].basis == "estimated"


def test_copies_of_a_file_are_left_out(tmp_path):
    path = written(tmp_path / "a.json", one_step())
    analysis = analyze([path, written(tmp_path / "b.json.gz", one_step())])
    assert len(analysis.ranks) == 1
    assert any("a copy of" in note for note in analysis.notes)


def test_files_of_different_jobs_are_not_mixed(tmp_path):
    (tmp_path / "x").mkdir()
    mixed = [
        *job(tmp_path, (200.0, 700.0)),
        *job(tmp_path / "x", (100.0, 100.0, 100.0), clocks=(0,) * 3),
    ]
    analysis = analyze(mixed)
    assert len(analysis.ranks) == 5
    assert any("different jobs" in note for note in analysis.notes)
    assert analysis.world_size is None
