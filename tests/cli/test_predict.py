import json
from pathlib import Path

import pytest

from tests.models.configs import CONFIGS
from tests.trace.events import written
from tests.whatif.jobs import uneven_steps
from weft.cli import main
from weft.models.named import generate
from weft.step import StepGraph

TABLES = "batch = 4096\n[[tables]]\nrows = 100000\ndim = 64\npooling = 10\ncount = 16\n"


def test_a_step_is_predicted(capsys):
    assert main(["predict", "gpt2", "--on", "h100-8", "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["verb"], whole["platform"]) == ("predict", "h100-8")
    row = whole["results"][0]
    assert row["low"] < row["seconds"] < row["high"]
    assert row["breakdown"]["families"]["gemm"] > 0


def test_settings_and_ranks_change_the_step(capsys):
    arguments = ["--on", "h100-8", "--ranks", "4", "--set", "layers=2", "--set", "batch=4"]
    assert main(["predict", "gpt2", *arguments]) == 0
    said = capsys.readouterr().out
    assert "gpt2 on 4 ranks of h100-8" in said
    assert "where the step goes" in said


def test_a_configuration_is_predicted_with_its_throughput(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIGS["llama-3-8b"]))
    arguments = ["predict", str(file), "--on", "h100-8", "--set", "batch=32"]
    assert main([*arguments, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["results"][0]
    assert row["settings"]["batch"] == 32
    assert row["settings"]["fsdp"] is True  # it does not fit otherwise
    assert "--set fsdp=true" in row["notes"][0]
    rates = row["throughput"]
    assert rates["tokens_per_second_per_rank"] == pytest.approx(32 * 8192 / 8 / row["seconds"])
    # at least six operations for each of the 7.5 billion weights of products
    assert rates["flops_per_second_per_rank"] > 6 * 7.5e9 * rates["tokens_per_second_per_rank"]
    assert 0.2 < rates["mfu"] < 0.8
    assert [stage["stage"] for stage in row["memory_by_stage"]] == [0]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert "tokens/s/GPU" in told
    assert "fsdp=true" in told


@pytest.mark.parametrize("verb", ["predict", "plan"])
@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"model_type": "llama",\n "hidden_size": 4096', "line 2 column 21"),  # cut off
        ('{"model_type": "llama",\n "layers": }', "line 2 column 12"),
    ],
)
def test_a_broken_configuration_is_refused_where_its_json_ends(verb, text, place, tmp_path, capsys):
    path = tmp_path / "config.json"
    path.write_text(text)
    assert main([verb, str(path), "--on", "h100-8"]) == 2
    said = capsys.readouterr().err
    assert f"{str(path)!r} is not valid JSON" in said
    assert place in said
    assert "expected the configuration of a model" in said


def test_a_trace_that_is_cut_off_is_still_predicted(tmp_path, recorded_file, capsys):
    text = Path(recorded_file).read_text()
    path = tmp_path / "cut.json"
    path.write_text(text[: text.rindex("}", 0, len(text) * 19 // 20)])
    with pytest.raises(ValueError, match="char"):
        json.loads(path.read_text())
    assert main(["predict", str(path), "--on", "h100-8", "--anyway", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["seconds"] > 0


def test_a_job_that_is_no_transformer_has_samples_a_second(capsys):
    assert main(["predict", "dlrm-rm2", "--on", "h100-8", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["results"][0]
    assert row["throughput"] == {"samples_per_second": pytest.approx(4096 / row["seconds"])}


@pytest.mark.parametrize("suffix", [".json", ".html", ".csv", ".workload.json"])
def test_what_was_found_is_written(tmp_path, capsys, suffix):
    file = tmp_path / f"step{suffix}"
    small = ["--set", "layers=1", "--on", "h100-8"]
    assert main(["predict", "gpt2", *small, "-o", str(file)]) == 0
    assert f"wrote {file}" in capsys.readouterr().out
    assert file.stat().st_size > 100
    if suffix == ".workload.json":
        assert StepGraph.from_json(file.read_bytes()).num_ranks == 8
        assert main(["predict", str(file), "--on", "h100-8"]) == 0
        assert main(["predict", str(file), "--on", "h100-8", "--ranks", "4"]) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("gpt2",), 2, "--on is missing"),
        (("gpt2", "--on", "h100-8", "--set", "batch"), 2, "Use --set key=value"),
        (("gpt2", "--on", "h100-8", "--set", "tp=2,pp=2"), 2, "Use --set tp=2 --set pp=2."),
        (("gpt22", "--on", "h100-8"), 2, "Did you mean"),
        (("nowhere.at.all:step", "--on", "h100-8"), 2, "there is no module"),
        (("json:step", "--on", "h100-8"), 2, "json has no function 'step'"),
        (("json:loads", "--on", "h100-8", "--set", "batch=3"), 2, "takes no 'batch'"),
        (("llama-70b", "--on", "h100-8"), 1, "--set fsdp=true shares them"),
        (("gpt2", "--on", "h100-8", "--library", "gloo"), 2, "not measured with a library 'gloo'"),
        (("gpt2", "--on", "cpu", "--library", "nope"), 2, "not measured with a library 'nope'"),
        (("none.json", "--on", "h100-8"), 2, "there is no file none.json"),
    ],
)
def test_what_is_wrong_is_said(capsys, arguments, code, said):
    assert main(["predict", *arguments]) == code
    assert said in capsys.readouterr().err


def test_settings_of_a_finished_workload_are_refused(tmp_path, capsys):
    path = tmp_path / "step.json"
    path.write_bytes(generate("gpt2", 8, {}).to_json())
    assert main(["predict", str(path), "--on", "h100-8", "--set", "a=b"]) == 2
    assert "--set a is too late" in capsys.readouterr().err


def test_tables_are_sharded(tmp_path, capsys):
    file, written = tmp_path / "tables.toml", tmp_path / "shards.csv"
    file.write_text(TABLES)
    arguments = ["shard", str(file), "--on", "h100-8"]
    assert main([*arguments, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert sum(row["chosen"] for row in whole["results"]) == 1
    assert {"name", "seconds", "bytes_per_rank", "chosen"} <= set(whole["results"][0])
    assert len(whole["shards"]) >= 16
    assert main([*arguments, "-o", str(written)]) == 0
    assert "chosen" in capsys.readouterr().out
    assert written.read_text().startswith("table,rank,rows,dim,sharding")


def test_shard_needs_hardware(capsys):
    assert main(["shard", "dlrm"]) == 2
    assert "--on is missing" in capsys.readouterr().err


@pytest.fixture
def recorded_file(tmp_path):
    from tests.whatif.player import Do, recorded

    trace = recorded(tmp_path, [[Do(seconds=300.0), Do(seconds=400.0), Do(back=True)]] * 3)[0]
    return trace.path


def test_a_trace_is_a_workload(recorded_file, capsys):
    assert main(["predict", recorded_file, "--on", "h100-8", "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["results"][0]
    assert row["low"] <= row["seconds"] <= row["high"]
    assert row["breakdown"]["compute"] > 0
    assert main(["predict", recorded_file, "--on", "h100-8"]) == 0
    assert "on a rank of h100-8" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--set", "batch=4"], "--set batch"),
        (["--ranks", "4"], "--ranks does not apply"),
    ],
)
def test_a_trace_stays_as_it_was_recorded(recorded_file, capsys, more, said):
    assert main(["predict", recorded_file, "--on", "h100-8", *more]) == 2
    assert said in capsys.readouterr().err


def test_a_trace_whose_replay_is_off_is_refused(tmp_path, capsys):
    path = written(tmp_path / "a.json", uneven_steps())
    assert main(["predict", str(path), "--on", "h100-8"]) == 1
    assert "the replay is off by" in capsys.readouterr().err
    assert main(["predict", str(path), "--on", "h100-8", "--anyway"]) == 0


def test_a_trace_that_is_not_there_is_named(capsys):
    assert main(["predict", "nowhere.json.gz", "--on", "h100-8"]) == 2
    assert "there is no file nowhere.json.gz" in capsys.readouterr().err
