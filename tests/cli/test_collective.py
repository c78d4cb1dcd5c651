import csv
import json

import pytest

from weft.cli import main
from weft.collectives import KINDS, algorithms
from weft.hardware import platform
from weft.simulator import simulate

QUICK = ("collective", "all_reduce", "--on", "mi300x-8", "--size", "1MiB")


def results(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert whole["verb"] == "collective"
    return whole["results"]


def test_a_result_has_the_agreed_keys(capsys):
    (row,) = results(capsys, *QUICK, "--algorithm", "ring")
    assert list(row) == [
        "collective",
        "algorithm",
        "nbytes",
        "ranks",
        "seconds",
        "algbw",
        "busbw",
        "basis",
    ]
    assert row["collective"] == "all_reduce"
    assert row["algorithm"] == "ring"
    assert row["nbytes"] == 1 << 20
    assert row["ranks"] == 8
    assert row["basis"] == "predicted"
    assert row["algbw"] == row["nbytes"] / row["seconds"]
    assert row["busbw"] == pytest.approx(row["algbw"] * 1.75)


def test_auto_is_the_fastest_and_says_which(capsys):
    (auto,) = results(capsys, *QUICK)
    every = results(capsys, *QUICK, "--algorithm", "all")
    fastest = min(every, key=lambda row: row["seconds"])
    assert auto["algorithm"] == "auto"
    assert auto["chosen"] == fastest["algorithm"]
    assert auto["seconds"] == fastest["seconds"]


def test_sizes_and_algorithms_are_lists(capsys):
    rows = results(
        capsys, "collective", "all_gather", "--on", "h100-8", "--size", "1KiB,64KiB:128KiB",
        "--algorithm", "ring,direct",
    )  # fmt: skip
    assert [(row["nbytes"], row["algorithm"]) for row in rows] == [
        (size, name) for size in (1024, 65536, 131072) for name in ("ring", "direct")
    ]


@pytest.mark.parametrize("on", ["h100-8", "h100-8x2", "switch(1)@1GB/s/switch(8)@1GB/s"])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "broadcast"])
def test_all_next_to_others_adds_what_applies(capsys, kind, on):
    case = ("collective", kind, "--on", on, "--size", "1MiB", "--algorithm")
    every = [row["algorithm"] for row in results(capsys, *case, "all")]
    more = [
        row["algorithm"]
        for row in results(capsys, *case, "ring,auto,all" if "ring" in every else "auto,all")
    ]
    named = ["ring", "auto"] if "ring" in every else ["auto"]
    assert more == [*named, *(name for name in every if name not in named)]


def test_what_a_library_took_stands_next_to_all_others(capsys):
    rows = results(capsys, *QUICK[:3], "h100-8", *QUICK[4:], "--algorithm", "nccl,auto,all")
    assert [row["algorithm"] for row in rows[:2]] == ["nccl", "auto"]
    assert len(rows) > 5


@pytest.mark.parametrize("on", ["h100-8", "h100-8x2"])
def test_the_library_of_the_platform_leads_where_it_was_measured(capsys, on):
    case = ("collective", "all_reduce", "--on", on, "--size", "1KiB,1MiB")
    rows = results(capsys, *case)
    assert [row["algorithm"] for row in rows] == ["nccl", "auto"] * 2
    assert rows == results(capsys, *case, "--algorithm", "nccl,auto")
    assert main([*case]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "nccl: the library of a job, fitted to measurements, as predict and plan" in told
    # Schedules of weft alone are named as such, with the library's time.
    assert main([*case, "--algorithm", "auto"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "these are schedules of weft, simulated; nccl takes" in told


@pytest.mark.parametrize(
    ("kind", "on"), [("scatter", "h100-8"), ("all_reduce", "mi300x-8"), ("all_reduce", "cpux2")]
)
def test_without_a_measured_library_weft_answers_with_its_own_schedules(capsys, kind, on):
    (row,) = results(capsys, "collective", kind, "--on", on, "--size", "1MiB")
    assert row["algorithm"] == "auto"


@pytest.mark.parametrize(
    ("on", "words"), [("h100-8", "8 ranks are in one level"), ("cpux2", "has 2")]
)
def test_what_is_named_must_apply(capsys, on, words):
    name = "nccl" if on == "cpux2" else "hierarchical"
    assert main([*QUICK[:3], on, "--algorithm", f"{name},all"]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert "0 ranks" not in told


@pytest.mark.parametrize("algorithm", ["dma-swap", "dma+prelaunch", "dma-swap+prelaunch"])
def test_engines_are_fed_as_the_device_can(capsys, algorithm):
    case = ["collective", "all_to_all", "--size", "1MiB", "--algorithm"]
    assert main([*case, algorithm, "--on", "h100-8"]) == 2
    assert "copy engines of NVIDIA H100 SXM have no" in capsys.readouterr().err
    assert main([*case, algorithm, "--on", "mi300x-8"]) == 0
    capsys.readouterr()
    (auto,) = results(capsys, *case, "dma-auto", "--on", "h100-8")
    assert auto["chosen"] in ("dma", "dma-b2b")


def test_ranks_default_to_all_of_the_platform(capsys):
    rows = results(capsys, *QUICK[:2], "--on", "mi300x-8x2", "--size", "1MiB")
    assert {row["ranks"] for row in rows} == {16}
    (row,) = results(capsys, *QUICK, "--ranks", "4")
    assert row["ranks"] == 4


@pytest.mark.thorough
def test_a_bare_network_is_a_platform(capsys):
    (row,) = results(
        capsys, "collective", "all_to_all", "--on", "switch(16)@50GiB/s,500ns", "--size", "1GiB"
    )
    assert row["seconds"] == pytest.approx(15 / 16 / 50, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_has_an_answer(capsys, kind):
    (row,) = results(capsys, "collective", kind, "--on", "mi300x-8", "--size", "64KiB")
    assert row["seconds"] > 0
    assert row["chosen"] in algorithms(kind)


def test_the_table_leads_with_the_answer_and_says_that_it_is_predicted(capsys):
    assert main([*QUICK, "--algorithm", "ring"]) == 0
    title, header, row = capsys.readouterr().out.splitlines()
    assert title == "all_reduce, 8 ranks on mi300x-8, predicted"
    assert header.split() == ["size", "algorithm", "time", "algbw", "busbw"]
    assert row.split()[:3] == ["1", "MiB", "ring"]


def test_a_timeline_is_drawn_when_asked(capsys):
    assert main([*QUICK, "--ranks", "2", "--timeline"]) == 0
    assert "stream0@0" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_is_written_by_its_suffix(capsys, tmp_path, name):
    assert main([*QUICK, "-o", str(tmp_path / name)]) == 0
    assert (tmp_path / name).stat().st_size > 100
    assert f"wrote {tmp_path / name}" in capsys.readouterr().out


def test_a_dash_is_stdout(capsys):
    assert main([*QUICK, "-o", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["traceEvents"]


def test_rows_are_written_as_csv(tmp_path, capsys):
    path = tmp_path / "rows.csv"
    assert main([*QUICK, "--algorithm", "ring,direct", "-o", str(path), "--json"]) == 0
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["algorithm"] for row in rows] == ["ring", "direct"]
    assert json.loads(capsys.readouterr().out)["results"][0]["seconds"] == float(rows[0]["seconds"])


def test_the_command_line_says_what_the_library_says(capsys):
    from weft.collectives import collective

    made = collective("all_gather", "ring", num_ranks=8, nbytes=1 << 20)
    (row,) = results(
        capsys, "collective", "all_gather", "--on", "h100-8", "--size", "1MiB",
        "--algorithm", "ring",
    )  # fmt: skip
    assert row["seconds"] == simulate(made, platform("h100-8")).seconds


@pytest.mark.thorough
def test_energy_is_shown_when_asked_for(capsys):
    case = ["collective", "all_gather", "--size", "1GiB", "--on", "mi300x-8", "--json"]
    found = {}
    for algorithm in ("direct", "dma"):
        assert main([*case, "--algorithm", algorithm, "--energy"]) == 0
        (found[algorithm],) = json.loads(capsys.readouterr().out)["results"]
    assert 150 < found["dma"]["watts"] < found["direct"]["watts"] < 750
    assert found["dma"]["joules"] == pytest.approx(
        8 * found["dma"]["watts"] * found["dma"]["seconds"]
    )
    assert main(case) == 0
    assert "joules" not in json.loads(capsys.readouterr().out)["results"][0]
    assert main([*case[:-1], "--energy"]) == 0
    assert "watts" in capsys.readouterr().out


def test_energy_is_not_measured(capsys):
    assert main(["collective", "all_gather", "--run", "--energy"]) == 2
    assert "--energy applies to predictions" in capsys.readouterr().err


def test_the_fastest_variant_by_engines_changes_with_the_size(capsys):
    case = ("collective", "all_gather", "--on", "mi300x-8", "--algorithm", "dma-auto")
    rows = results(capsys, *case, "--size", "4KiB,256KiB,64MiB")
    chosen = ["dma-b2b+prelaunch", "dma-bcst+prelaunch", "dma+prelaunch"]
    assert [row["chosen"] for row in rows] == chosen  # as arXiv 2511.06605 measures
    assert {row["algorithm"] for row in rows} == {"dma-auto"}


@pytest.mark.parametrize(
    ("kind", "on", "said"),
    [
        ("all_reduce", "mi300x-8", "does not apply to all_reduce"),
        ("all_gather", "switch(8)@1GB/s", "which has no DMA engines"),
        ("all_gather", "mi300x-8x2", "one host"),
    ],
)
def test_engines_that_cannot_say_so(capsys, kind, on, said):
    assert main(["collective", kind, "--on", on, "--algorithm", "dma-auto"]) == 2
    assert said in capsys.readouterr().err


def test_a_page_shows_all_sizes_and_the_last_timeline(tmp_path, capsys):
    page = tmp_path / "page.html"
    sizes = ["--size", "1KiB,1MiB", "--on", "mi300x-8", "-o", str(page)]
    assert main(["collective", "all_reduce", *sizes]) == 0
    text = page.read_text()
    assert "1 MiB" in text
    assert 'data-timeline="timeline-0"' in text
