"""Several ranks replayed together: who waits for whom is found, not put in."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trace.events import text, written
from tests.whatif.jobs import straggling
from tests.whatif.player import Do, play
from weft.errors import FormatError, UnknownNameError
from weft.hardware import platform
from weft.trace.formats.kineto import read_kineto
from weft.trace.formats.reading import jobs_of
from weft.whatif import what_if_job, what_if_jobs
from weft.whatif.joined_job import job_of, job_replay, straggler, without_straggler

MOVES = 40.0  # microseconds of each collective once both ranks are there


def traces(folder, hosts):
    """Play ranks that meet in two collectives; each one's host is so slow before each of them."""
    arrive = np.array(hosts, float)
    found = []
    first = arrive[:, 0].max()
    second = (first + MOVES + 30 + arrive[:, 1]).max()
    for rank, (one, two) in enumerate(arrive):
        ends = (first + MOVES + 4.0, second + MOVES + 4.0)
        step = [
            Do(seconds=1.0, gap=one),
            Do(stream=20, seconds=ends[0] - one - 5.0, gap=0.5, nccl=True),
            Do(stream=20, back=True, seconds=1.0, gap=30.0),
            Do(seconds=1.0, gap=two),
            Do(stream=20, nccl=True, gap=0.5),
        ]
        host = _host_before_last(step)
        step[-1].seconds = max(MOVES, ends[1] + 60.0 - host)
        events, _ = play([step])
        path = folder / f"rank{rank}.json"
        path.write_bytes(text(events, rank=rank, world_size=len(hosts)))
        found.append(read_kineto(path))
    return found


def _host_before_last(step):
    events, _ = play([step])
    return max(e["ts"] for e in events if e["name"].startswith("nccl"))


def test_waiting_comes_out_as_the_traces_show_it(tmp_path):
    job = job_replay(job_of(traces(tmp_path, [(50.0, 10.0), (500.0, 10.0), (90.0, 300.0)])))
    run = job.run()
    assert job.waits(run) == pytest.approx(job.waited, abs=3e-6)
    assert all(abs(each.error) < 0.02 for each in job.model.replays)


def test_the_rank_that_others_wait_for_is_found_and_brought_in_time(tmp_path):
    job = job_replay(job_of(traces(tmp_path, [(50.0, 10.0), (500.0, 10.0), (90.0, 10.0)])))
    run = job.run()
    assert straggler(job, run) == 1
    after = job.run(without_straggler(job, 1))
    # Without it, rank 0 waits at the first collective for rank 2 alone.
    assert job.waits(after)[0, 0] == pytest.approx(40e-6, abs=3e-6)
    assert job.waits(after)[2, 0] == pytest.approx(0.0, abs=3e-6)


def test_a_rank_that_is_late_by_its_kernels_is_brought_in_time_by_them(tmp_path):
    paths = [
        written(
            tmp_path / f"rank{n}.json", straggling(n, (200.0, 900.0, 260.0)), rank=n, world_size=3
        )
        for n in range(3)
    ]
    job = job_replay(job_of([read_kineto(path) for path in paths]))
    assert straggler(job, job.run()) == 1
    after = job.run(without_straggler(job, 1))
    assert job.waits(after)[0, 0] == pytest.approx(60e-6, abs=3e-6)
    assert job.run().seconds - after.seconds == pytest.approx(640e-6, rel=0.02)


def test_a_change_that_changes_nothing_on_any_rank_says_so(tmp_path):
    answer = what_if_job(traces(tmp_path, [(50.0, 10.0), (500.0, 10.0)]), ["no-sync", "no-gaps"])
    assert [outcome.name for outcome in answer.outcomes] == ["no-sync"]
    assert any(note.startswith("no-gaps changes nothing here") for note in answer.notes)


def test_a_job_is_answered_as_a_whole(tmp_path):
    answer = what_if_job(traces(tmp_path, [(50.0, 10.0), (500.0, 10.0)]))
    found = {outcome.name: outcome for outcome in answer.outcomes}
    assert len(answer.replays) == 2
    assert "no-straggler" in found
    assert found["no-waiting"].step <= answer.replayed_step
    assert any("2 ranks joined by 2 collectives" in note for note in answer.notes)


def test_another_machine_is_answered_next_to_the_straggler(tmp_path):
    found = traces(tmp_path, [(50.0, 10.0), (500.0, 10.0)])
    answer = what_if_job(found, ["no-straggler"], on=platform("h100-8"))
    assert [outcome.name for outcome in answer.outcomes] == ["no-straggler", "on h100-8"]


def test_traces_that_are_on_one_clock_stay_there(tmp_path):
    """A rank that meets nobody is placed by its own clock, however often that is asked for."""
    paths = []
    for rank, zero in enumerate((0.0, 0.0, 5000.0)):
        events, _ = play([[Do(), Do(stream=20, nccl=rank < 2, back=rank == 2)]] * 2, offset=zero)
        paths.append(tmp_path / f"rank{rank}.json")
        paths[-1].write_bytes(text(events, rank=rank, world_size=3))
    (once,), _ = jobs_of([read_kineto(path) for path in paths])
    (twice,), _ = jobs_of([ranked.trace for ranked in once.ranks])
    for first, second in zip(once.ranks, twice.ranks, strict=True):
        assert np.allclose(first.trace.columns.start, second.trace.columns.start)


def test_traces_of_two_jobs_are_not_joined(tmp_path):
    first = traces(tmp_path, [(50.0, 10.0)])
    (tmp_path / "other").mkdir()
    other = traces(tmp_path / "other", [(70.0, 10.0)])
    with pytest.raises(FormatError, match="2 jobs"):
        job_of([*first, *other])


def test_names_of_no_change_are_refused_before_anything_is_replayed():
    with pytest.raises(UnknownNameError, match="unknown change 'dmaa'"):
        what_if_jobs([], ["no-straggler", "dmaa"])
