import json

import pytest

from tests.models.configs import CONFIGS
from weft.cli import main
from weft.units import format_time

SMALL = ("--set", "layers=2", "--requests", "4", "--prompt", "256", "--generate", "2")


def test_every_way_is_compared_with_a_call_a_block(capsys):
    assert main(["serve", "llama-8b", "--on", "mi300x-8", *SMALL, "--json"]) == 0
    whole = json.loads(capsys.readouterr().out)
    rows = {row["fetch"]: row for row in whole["results"]}
    assert list(rows) == ["per-copy", "batched", "b2b", "kernel", "recompute"]
    assert rows["per-copy"]["ttft_alone_gain"] == 1.0
    assert rows["b2b"]["ttft_alone_gain"] > 1.0
    assert all(row["basis"] == "predicted" and row["tp"] == 8 for row in rows.values())


def test_blocks_are_listed_and_rows_written(tmp_path, capsys):
    file = tmp_path / "served.csv"
    arguments = ["--block", "4KiB,64KiB", "--fetch", "b2b", "--hit", "0.5", "--rate", "100"]
    assert main(["serve", "llama-8b", "--on", "mi300x-8", *SMALL, *arguments, "-o", str(file)]) == 0
    said = capsys.readouterr().out
    assert "4 requests, 100 a second" in said
    assert f"wrote {file}" in said
    assert len(file.read_text().splitlines()) == 3


def test_a_file_may_say_what_is_served(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text('model = "llama-8b"\nname = "mine"\nlayers = 2\ntp = 2\n')
    load = ["--requests", "2", "--prompt", "64", "--generate", "2", "--set", "tp=4"]
    assert main(["serve", str(file), "--on", "mi300x-8", *load, "--fetch", "b2b", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert row["tp"] == 4
    assert row["ttft_alone_gain"] > 1.0


ON_H100 = ("llama-8b", "--on", "h100-8")


def test_a_server_is_asked_with_a_number_in_flight_and_its_settings_are_replaced(capsys):
    load = (*SMALL, "--concurrency", "2", "--set", "tp=1", "--server", "vllm")
    means = []
    for more in ((), ("--tokens", "64", "--batch", "8"), ("--overhead", "50ms")):
        assert main(["serve", *ON_H100, *load, *more, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["results"]
        assert (row["server"], row["concurrency"], row["fetch"]) == ("vllm", 2, "recompute")
        means.append((row["ttft"], row["itl"]))
    assert means[1][0] > means[0][0]
    assert means[2][1] > means[0][1] + 0.04


def test_a_number_in_flight_is_kept_for_ten_rounds_unless_requests_are_counted(capsys):
    load = ("--set", "layers=2", "--prompt", "64", "--generate", "2", "--server", "vllm")
    for more, count in (((), 64), (("--concurrency", "3"), 30)):
        assert main(["serve", *ON_H100, *load, *more, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["results"]
        assert row["requests"] == count


def test_the_ranges_of_measured_servers_are_printed(capsys):
    arguments = ["serve", *ON_H100, *SMALL, "--concurrency", "2", "--server", "vllm@0.12"]
    assert main([*arguments, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert f"between tokens {format_time(row['itl_low'])} to" in said
    assert said.startswith("vllm@0.12: llama-8b, tp 8, on h100-8")


def test_a_report_has_the_table_and_its_ranges(tmp_path, capsys):
    file = tmp_path / "served.html"
    arguments = ["serve", *ON_H100, *SMALL, "--concurrency", "2", "--server", "vllm"]
    assert main([*arguments, "-o", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (at,) = (n for n, line in enumerate(lines) if "first token, alone" in line)
    page = file.read_text()
    cells = [cell.strip() for cell in lines[at + 1].split("  ") if cell]
    assert len(cells) == 4
    assert all(f">{cell}<" in page for cell in cells)
    assert lines[at + 2] in page


def test_prompts_and_answers_have_workers_of_their_own(capsys):
    load = (*SMALL, "--concurrency", "2", "--server", "sglang")
    pools = ("--prefill", "2x1", "--decode", "1x2")
    assert main(["serve", *ON_H100, *load, *pools, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    assert (row["prefill"], row["decode"], row["tp"]) == ("2x1", "1x2", 2)
    assert row["ttft"] >= row["ttft_alone"] > 0.0
    assert main(["serve", *ON_H100, *load, *pools]) == 0
    assert "2x1" in capsys.readouterr().out


def test_keys_and_values_move_between_the_nodes_of_a_machine(capsys):
    load = ("llama-8b", *SMALL, "--concurrency", "2", "--server", "sglang")
    rows = []
    for machine in ("h100-8", "h100-8x2"):
        pools = ("--on", machine, "--prefill", "1x1", "--decode", "1x1")
        assert main(["serve", *load, *pools, "--json"]) == 0
        rows += json.loads(capsys.readouterr().out)["results"]
    assert rows[0]["ttft"] == rows[1]["ttft"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("llama-8b",), 2, "--on is missing"),
        (("llama-9b", "--on", "mi300x-8"), 2, "Did you mean"),
        (("dlrm", "--on", "mi300x-8"), 2, "expected a transformer"),
        (("llama-8b", "--on", "mi300x-8", "--block", "0"), 2, "a block of 0 bytes holds nothing"),
        (("llama-8b", "--on", "mi300x-8", "--hit", "1.5"), 2, "from 0 to 1"),
        (("llama-8b", "--on", "mi300x-8", "--hit", "-0.5"), 2, "from 0 to 1"),
        (("llama-8b", "--on", "h100-8", "--server", "vllm", "--hit", "0.5"), 2, "--fetch b2b"),
        (
            ("llama-8b", "--on", "h100-8", "--prefill", "2x1", "--decode", "2x1", "--fetch", "b2b"),
            2,
            "Remove --fetch",
        ),
        (("llama-8b", "--on", "mi300x-8", "--fetch", "loop"), 2, "'loop'"),
        (("llama-8b", "--on", "mi300x-8", "--fetch", ","), 2, "--fetch: the list is empty"),
        (("llama-8b", "--on", "mi300x-8", "--seed", "-1"), 2, "--seed"),
        (("llama-8b", "--on", "mi300x-8", "--reduce", "tree"), 2, "unknown reduction of ranks"),
        (("llama-8b", "--on", "mi300x-8", "--set", "tp=3"), 2, "do not divide"),
        (("llama-8b", "--on", "mi300x-8", "--set", "tp=0"), 2, "tp: must be at least 1"),
        (("llama-8b", "--on", "mi300x-8", "--set", "pp=2"), 2, "pp and fsdp are not served"),
        (("llama-8b", "--on", "mi300x-8", "--set", "batch=64"), 2, "--set batch: serving has no"),
        (("llama-8b", "--on", "mi300x-8", "--set", "zero=3"), 2, "--set zero: serving has no"),
        (("llama-8b", "--on", "mi300x-8", "--overhead", "fast"), 2, "cannot parse 'fast'"),
        (("llama-8b", "--on", "mi300x-8", "--tokens", "8"), 2, "cannot serve 256 requests"),
        (("llama-8b", "--on", "mi300x-8", "--requests", "0"), 2, "at least 1"),
        (("llama-405b", "--on", "mi300x-8", "--set", "tp=1"), 1, "the weights need"),
        (("llama-8b", "--on", "switch(8)@1GB/s"), 2, "network without devices"),
        ((*ON_H100, "--server", "vlm"), 2, "Did you mean"),
        ((*ON_H100, "--server", "vllm", "--tokens", "8"), 2, "cannot serve 256 requests"),
        ((*ON_H100, "--concurrency", "8", "--requests", "4"), 2, "Use --requests 80"),
        ((*ON_H100, "--concurrency", "8", "--rate", "3"), 2, "got 3 a second and --concurrency 8"),
        (
            (*ON_H100, "--prefill", "2x1"),
            2,
            "--decode: expected workers x ranks",
        ),
        ((*ON_H100, "--prefill", "2", "--decode", "1x1"), 2, "--prefill: expected"),
        ((*ON_H100, "--prefill", "8x1", "--decode", "1x1"), 2, "need 9 ranks, h100-8 has 8"),
        (
            ("mixtral-8x7b", *ON_H100[1:], "--set", "ep=8", "--prefill", "1x1", "--decode", "1x1"),
            2,
            "need 16 ranks",
        ),
        ((*ON_H100, "--set", "flash=false"), 2, "--set flash: serving has no"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(capsys, arguments, code, said):
    assert main(["serve", *arguments]) == code
    assert said in capsys.readouterr().err


def test_what_a_configuration_asks_for_and_is_not_served_is_named(tmp_path, capsys):
    file = tmp_path / "config.json"
    config = CONFIGS["llama-3-8b"] | {"quantization_config": {"quant_method": "fp8"}}
    file.write_text(json.dumps(config | {"max_position_embeddings": 131072}))
    asked = ["serve", str(file), "--on", "h100-8", *SMALL, "--fetch", "recompute"]
    assert main([*asked, "--json"]) == 0
    (note,) = json.loads(capsys.readouterr().out)["notes"]  # none of the length of training
    assert "use --set math=fp8" in note
    assert main(asked) == 0
    assert "use --set math=fp8" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--set", "math=fp8", "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["notes"]
