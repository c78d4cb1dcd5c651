import json
import os
import subprocess
import sys
from importlib.metadata import version

import pytest

import weft
from benchmarks.startup import imports_torch
from weft.cli import main
from weft.cli.checkup import Finding, rocm_gpus
from weft.hardware import platform_names
from weft.models.named import changed, model_named

VERBS = (
    *("tour", "doctor", "platforms", "calibrate", "collective", "copies", "kernel", "c3"),
    *("analyze", "whatif", "predict", "plan", "shard", "serve", "sweep", "bench", "validate"),
    *("gpu-check", "watch", "diff", "export", "models"),
)


def test_without_a_verb_the_verbs_are_listed(capsys):
    assert main([]) == 0
    text = capsys.readouterr().out
    assert all(f"  {verb} " in text for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_help_has_an_example(capsys, verb):
    assert main([verb, "--help"]) == 0
    assert f"example: weft {verb}" in capsys.readouterr().out


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"weft {weft.__version__}\n"
    assert weft.__version__ == version("weft")


def test_platforms_lists_the_catalogue(capsys):
    assert main(["platforms", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [row["name"] for row in rows] == list(platform_names())
    assert all(row["ranks"] >= 2 and row["link_rate"] > 1e9 for row in rows)
    assert main(["platforms"]) == 0
    assert "mi300x-8" in capsys.readouterr().out


def test_a_platform_shows_every_number_with_its_source(capsys):
    assert main(["platforms", "mi300x-8", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    numbers = {row["key"]: row for row in whole["results"]}
    assert whole["platform"] == "mi300x-8"
    assert numbers["device.units"]["value"] == 304
    assert numbers["levels.0.rate"]["value"] == pytest.approx(336e9)
    assert all(row["source"] for row in numbers.values())
    assert main(["platforms", "mi300x-8"]) == 0
    assert "device.units" in capsys.readouterr().out


def test_the_doctor_says_which_paths_are_on(capsys):
    assert main(["doctor", "--json"]) == 0
    found = {row["name"]: row["state"] for row in json.loads(capsys.readouterr().out)["results"]}
    assert found["native core"] == "on"
    assert found["run: processes on this machine"] == "on"
    assert main(["doctor"]) == 0
    assert "✓" in capsys.readouterr().out


ROCMINFO = """
Agent 1
  Name:                    AMD EPYC 9654
  Marketing Name:          AMD EPYC 9654 96-Core Processor
  Device Type:             CPU
Agent 2
  Name:                    gfx942
  Marketing Name:          AMD Instinct MI300X
  Vendor Name:             AMD
  Device Type:             GPU
"""


def test_cpu_agents_of_rocm_are_no_gpus():
    assert rocm_gpus(ROCMINFO.splitlines()) == ["AMD Instinct MI300X"]
    assert rocm_gpus(ROCMINFO.split("Agent 2", maxsplit=1)[0].splitlines()) == []


def test_triton_kernels_need_a_gpu(capsys, monkeypatch):
    monkeypatch.setattr("weft.cli.checkup._lines_of", lambda *_command: [])
    assert main(["doctor", "--json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)["results"]}
    assert found["Triton kernels on GPUs"]["state"] == "off"
    assert "GPUs" in found["Triton kernels on GPUs"]["detail"]


def test_the_doctor_says_no_when_the_core_is_broken(capsys, monkeypatch):
    broken = Finding("native core", "broken", "no such file. Run: make install")
    monkeypatch.setattr("weft.cli.checkup._core", lambda: broken)
    assert main(["doctor"]) == 1
    text = capsys.readouterr().out
    assert "✗" in text
    assert "needs native core" in text


def test_bench_lists_its_questions(capsys):
    assert main(["bench", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert {"simulator", "startup"} <= {row["bench"] for row in rows}


def test_bench_appends_its_results(capsys, tmp_path, monkeypatch):
    from benchmarks.harness import measure

    monkeypatch.setattr("benchmarks.startup.run", lambda _: [measure("startup", {}, lambda: 0.5)])
    path = tmp_path / "here.jsonl"
    assert main(["bench", "startup", "-o", str(path)]) == 0
    assert "500 ms" in capsys.readouterr().out
    assert json.loads(path.read_text())["median"] == 0.5


def test_pricing_does_not_import_torch():
    assert not imports_torch(("collective", "all_reduce", "--size", "1MiB", "--on", "mi300x-8"))


@pytest.mark.parametrize(
    ("words", "completed"),
    [
        ("weft coll", "collective"),
        ("weft collective all_r", "all_reduce"),
        ("weft collective all_reduce --on mi300", "mi300x-8"),
        ("weft collective all_reduce --algorithm ring,dir", "ring,direct"),
        ("weft bench start", "startup"),
    ],
)
def test_the_shell_completes(words, completed):
    start = "import sys; from weft.cli import main; sys.exit(main(sys.argv[1:]))"
    environment = os.environ | {
        "_WEFT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    done = subprocess.run(
        [sys.executable, "-c", start], env=environment, capture_output=True, text=True, check=False
    )
    assert completed in done.stdout.split()


def test_models_lists_the_settings_of_a_workload(capsys):
    assert main(["models", "--json"]) == 0
    names = {row["name"] for row in json.loads(capsys.readouterr().out)["results"]}
    assert {"gpt2", "dlrm", "llama-8b"} <= names
    assert main(["models", "gpt2", "--json"]) == 0
    found = {row["setting"]: row for row in json.loads(capsys.readouterr().out)["results"]}
    assert found["layers"]["value"] == 12
    assert found["tied"]["takes"] == "true or false"
    model = model_named("gpt2")
    assert changed("gpt2", model, {key: row["value"] for key, row in found.items()}) == model
    assert main(["models", "gpt3"]) == 2
    assert main(["models", "dlrm"]) == 0
    assert "bottom" in capsys.readouterr().out


def test_no_summary_of_a_verb_is_cut(capsys):
    assert main([]) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]
