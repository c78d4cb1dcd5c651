"""weft analyze from the command line."""

import csv
import json

import pytest

import weft
from tests.trace.events import all_reduce, event, job, kernel, launch, mark, written
from tests.whatif.jobs import exposed_steps, straggling
from weft.cli import main


def test_the_answer_comes_first_and_then_what_it_rests_on(tmp_path, capsys):
    late = (200.0, 700.0)
    paths = [
        written(tmp_path / f"rank{rank}.json", straggling(rank, late), rank=rank)
        for rank in range(2)
    ]
    assert main(["analyze", *map(str, paths)]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2 of 2 ranks, NVIDIA A100-SXM4-80GB: a step takes 860 us on rank ")
    assert "1. Find out why rank 1 is late: saves" in text
    assert "replayed (no-straggler)" in text
    for title in ("Ranks", "Steps", "Collectives", "Why the GPU idles", "Critical path"):
        assert f"\n{title}" in text


def test_json_has_the_keys_of_the_contract(tmp_path, capsys):
    paths = job(tmp_path, (200.0, 700.0))
    assert main(["analyze", "--json", *map(str, paths)]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["verb"] == "analyze"
    for row, path in zip(whole["results"], paths, strict=True):
        keys = "file rank num_events num_gpu_events span busy compute communication exposed"
        assert set(keys.split()) | {"waiting", "moving", "steps"} <= row.keys()
        assert row["file"] == str(path)
        assert row["num_events"] == 15
        step = {"name", "start", "wall", "period", "busy", "communication", "exposed"}
        assert all(step <= each.keys() for each in row["steps"])


def test_steps_are_written_as_csv(tmp_path, capsys):
    paths = job(tmp_path, (200.0, 700.0))
    out = tmp_path / "steps.csv"
    assert main(["analyze", *map(str, paths), "-o", str(out)]) == 0
    assert f"wrote {out}" in capsys.readouterr().out
    rows = list(csv.DictReader(out.read_text().splitlines()))
    assert [row["rank"] for row in rows] == ["0"] * 3 + ["1"] * 3
    assert float(rows[0]["wall"]) == pytest.approx(990e-6)


def test_a_file_without_steps_is_a_line_a_rank_in_csv(tmp_path):
    path = written(tmp_path / "a.json", [kernel(0, 5)])
    assert main(["analyze", str(path), "-o", str(tmp_path / "a.csv")]) == 0
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 2


def test_a_trace_without_a_gpu_says_so(tmp_path, capsys):
    path = written(tmp_path / "a.json", [event("aten::mm", "cpu_op", 0, 5)])
    assert main(["analyze", str(path)]) == 0
    assert "no GPU event" in capsys.readouterr().out


def test_links_that_nothing_came_near_to_are_doubted(tmp_path, capsys):
    events = []
    for step in range(4):
        at = 10_000 * step
        events += [
            mark(step, at, 9_900),
            launch(at, step),
            all_reduce(at + 9, 5_000, step, 1 << 18),
        ]
    path = written(tmp_path / "a.json", events)
    assert main(["analyze", str(path)]) == 0
    assert "or the job ran on slower links" in capsys.readouterr().out


def test_long_lists_are_cut_and_say_so(tmp_path, capsys):
    events = []
    for step in range(20):
        at = 1_000 * step
        events += [mark(step, at, 990), launch(at, step), all_reduce(at + 9, 500, step, 64 << step)]
    assert main(["analyze", str(written(tmp_path / "a.json", events))]) == 0
    text = capsys.readouterr().out
    assert "and 8 more" in text
    assert "kinds and sizes more" in text


def test_a_file_that_is_not_there_is_an_error_of_one_line(capsys):
    assert main(["analyze", "none.json"]) != 0
    assert "cannot read 'none.json'" in capsys.readouterr().err


def test_python_gives_the_same(tmp_path):
    analysis = weft.analyze(job(tmp_path, (200.0, 700.0)))
    assert isinstance(analysis, weft.Analysis)
    assert analysis.step_time == pytest.approx(1e-3)


def test_busy_is_the_same_in_text_page_and_json(tmp_path, capsys):
    path = written(tmp_path / "a.json", exposed_steps())
    page = tmp_path / "a.html"
    assert main(["analyze", str(path), "-o", str(page)]) == 0
    assert main(["analyze", str(path), "--json"]) == 0
    text, _, found = capsys.readouterr().out.partition("wrote")
    (row,) = json.loads(found[found.index("{") :])["results"]
    said = f"{100 * row['busy_share']:.0f} %"
    assert row["busy_share"] == pytest.approx(902 / 960, abs=1e-3)
    assert f"GPU busy {said}" in text
    tile = page.read_text().partition("GPU busy")[2][:200]
    assert said in tile


def test_a_trace_that_names_no_device_has_its_communication_mentioned(tmp_path, capsys):
    path = written(tmp_path / "a.json", exposed_steps(steps=2), deviceProperties=[])
    assert main(["analyze", str(path)]) == 0
    text = capsys.readouterr().out
    assert "the split of waiting for other ranks and moving bytes is unknown" in text
    assert "1. Hide communication behind computation: saves" in text


def test_the_text_lists_kernels_and_idle_time_of_the_mean_step(tmp_path, capsys):
    paths = job(tmp_path, (200.0, 700.0))
    assert main(["analyze", *map(str, paths)]) == 0
    text = capsys.readouterr().out
    assert "Kernels in the mean step" in text
    assert "matrix products" in text
    idle = text.split("idle ")[1].split("\n")[0]
    assert f"Why the GPU idles, {idle} of a step" in text


def test_what_is_missing_is_said_before_the_numbers(tmp_path, capsys):
    whole = written(tmp_path / "rank0.json", exposed_steps()).read_bytes()
    path = tmp_path / "writing.json"
    path.write_bytes(whole[: len(whole) * 3 // 4])
    assert main(["analyze", str(path)]) == 0
    first = capsys.readouterr().out.splitlines()[:5]
    assert any("is it still being written?" in line for line in first)


def test_files_of_different_jobs_are_named_before_the_numbers(tmp_path, capsys):
    paths = [
        written(tmp_path / "a.json", exposed_steps(), rank=0, world_size=2),
        written(tmp_path / "b.json", exposed_steps(compute=500.0), rank=0, world_size=8),
    ]
    assert main(["analyze", *map(str, paths)]) == 0
    text = capsys.readouterr().out
    assert "2 files of 2 different jobs" in text.partition("Do first")[0]


def test_each_of_several_jobs_has_its_own_line_and_advice(tmp_path, capsys):
    paths = [
        written(tmp_path / "a.json", exposed_steps(), rank=0, world_size=2),
        written(tmp_path / "b.json", exposed_steps(compute=500.0), rank=0, world_size=8),
    ]
    assert main(["analyze", *map(str, paths), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    alone = []
    for path in paths:
        assert main(["analyze", str(path), "--json"]) == 0
        alone.append(json.loads(capsys.readouterr().out))
    assert found["step_time"] is None
    assert [each["name"] for each in found["jobs"]] == ["a", "b"]
    for each, own in zip(found["jobs"], alone, strict=True):
        assert (each["step_time"], each["advice"]) == (own["step_time"], own["advice"])
    page = tmp_path / "jobs.html"
    assert main(["analyze", *map(str, paths), "-o", str(page)]) == 0
    assert "on rank" not in capsys.readouterr().out
    assert "2 jobs" in page.read_text()
