"""Traces of several ranks: who belongs to whom, on which clock."""

import json

import pytest

from tests.trace.events import all_reduce, event, job, kernel, launch, mark, one_step, written
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


def test_groups_of_the_same_ranks_count_for_themselves(tmp_path):
    paths = []
    for rank in range(2):
        events = []
        for number in range(8):
            end, group = 1000 * (number + 1), "dp" if number % 2 == 0 else "ep"
            start = end - 100 - 50 * (rank == 0)
            about = {"Process Group Ranks": "[0, 1]", "Seq": number // 2}
            events += [launch(start - 10, number), all_reduce(start, end - start, number, **about)]
            events[-1]["args"]["Process Group Name"] = group
        paths.append(written(tmp_path / f"{rank}.json", events, rank=rank))
    early, late = analyze(paths).ranks
    assert {use.basis for use in (*early.collectives, *late.collectives)} == {"measured"}
    assert [use.waiting for use in early.collectives] == pytest.approx([50e-6] * 8)
    assert [use.waiting for use in late.collectives] == pytest.approx([0.0] * 8, abs=1e-9)


def message(ts, dur, kind, correlation, **args):
    about = {"Collective name": kind, "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20}
    about |= {"dtype": "Float", "Group size": 2, "Process Group Name": "pp"}
    return kernel(ts, dur, "ncclDevKernel_SendRecv", 21, correlation, **about, **args)


def test_messages_do_not_move_clocks(tmp_path):
    # A sender is done before its receiver, and both count on the collective before: Seq is 0.
    paths = []
    for rank in range(2):
        events = []
        for step in range(4):
            at = 1000 * step
            events += [launch(at, step), launch(at + 1, 10 + step), launch(at + 2, 20 + step)]
            if rank == 0:
                events += [message(at + 10, 20, "send", step, Seq=0)]
                events += [message(at + 500, 400, "recv", 10 + step, Seq=0)]
            else:
                events += [message(at + 15, 300, "recv", step, Seq=0)]
                events += [message(at + 600, 30, "send", 10 + step, Seq=0)]
        paths.append(written(tmp_path / f"{rank}.json", events, rank=rank))
    analysis = analyze(paths)
    assert not any("clock of rank" in note for note in analysis.notes)
    assert [use.start for use in analysis.ranks[1].collectives][:2] == pytest.approx(
        [15e-6, 600e-6]
    )
    kinds = {use.kind for rank in analysis.ranks for use in rank.collectives}
    assert kinds == {"send_recv"}


def test_a_batch_of_messages_is_no_all_to_all(tmp_path):
    events = [
        event("nccl:coalesced", "user_annotation", 0, 10, 1),
        launch(5, 1),
        kernel(20, 100, "ncclDevKernel_SendRecv", 21, 1),
        event("nccl:all_to_all", "user_annotation", 200, 10, 1),
        launch(205, 2),
        kernel(220, 100, "ncclDevKernel_SendRecv", 21, 2),
    ]
    (rank,) = analyze(written(tmp_path / "a.json", events)).ranks
    assert [use.kind for use in rank.collectives] == ["send_recv", "all_to_all"]


def test_links_between_nodes_price_groups_that_reach_across_them(tmp_path):
    events = [
        launch(0, 1),
        all_reduce(10, 100, 1, 1 << 20, **{"Process Group Ranks": "[0, 1]"}),
        launch(200, 2),
        all_reduce(210, 100, 2, 1 << 20, **{"Process Group Ranks": "[0, 8]"}),
    ]
    (rank,) = analyze(written(tmp_path / "a.json", events, world_size=16)).ranks
    inside, across = (use.link for use in rank.collectives)
    assert inside is not None
    assert across is not None
    assert across < 0.5 * inside


def test_steps_that_are_counted_anew_are_steps_of_their_own(tmp_path):
    events = []
    for number in range(6):  # two epochs of three steps
        at = 1000.0 * number
        events += [
            mark(number % 3, at, 900),
            launch(at + 1, number),
            kernel(at + 10, 500, correlation=number),
        ]
    (rank,) = analyze(written(tmp_path / "a.json", events)).ranks
    names = [f"ProfilerStep#{n}" for n in range(3)]
    assert [step.name for step in rank.steps] == [*names, *(f"{name} (2)" for name in names)]
    assert [step.period for step in rank.steps[:-1]] == pytest.approx([1e-3] * 5)


def in_groups(folder, groups, steps=4):
    """Write ranks that meet once a step in each of their groups, and begin when they are told."""
    paths = []
    for rank in sorted({rank for begins, _ in groups.values() for rank in begins}):
        events, number = [], 0
        for step in range(steps):
            for name, (begins, end) in groups.items():
                if rank in begins:
                    at, number = 10_000 * step + begins[rank], number + 1
                    about = {"Process Group Ranks": str([*begins]), "Seq": step}
                    took = 10_000 * step + end - at
                    events += [launch(at - 5, number), all_reduce(at, took, number, **about)]
                    events[-1]["args"]["Process Group Name"] = name
        paths.append(written(folder / f"{rank}.json", events, rank=rank, world_size=3))
    return paths


def test_a_straggler_is_the_last_in_so_many_of_its_own_collectives(tmp_path):
    groups = {"a": ({0: 100, 1: 600}, 900), "b": ({0: 2000, 2: 2000}, 2900)}
    (late,) = analyze(in_groups(tmp_path, groups)).stragglers
    assert (late.rank, late.num_last, late.num_collectives) == (1, 4, 4)


def test_a_rank_is_not_late_because_of_a_collective_that_still_runs(tmp_path):
    """Group a runs next to b, for as long on both ranks; rank 1 comes late to b by 500 us."""
    groups = {"a": ({0: 100, 1: 130}, 5000), "b": ({0: 200, 1: 700}, 1500)}
    (late,) = analyze(in_groups(tmp_path, groups)).stragglers
    assert late.rank == 1
    assert "kernels took" not in late.why
