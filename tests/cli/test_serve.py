import json

import pytest

from weft.cli import main

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
    assert "4 requests 100 a second" in said
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


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("llama-8b",), 2, "--on is missing"),
        (("llama-9b", "--on", "mi300x-8"), 2, "Did you mean"),
        (("dlrm", "--on", "mi300x-8"), 2, "dlrm is no transformer"),
        (("llama-8b", "--on", "mi300x-8", "--block", "0"), 2, "a block of 0 bytes holds nothing"),
        (("llama-8b", "--on", "mi300x-8", "--hit", "1.5"), 2, "Use 0 to 1."),
        (("llama-8b", "--on", "mi300x-8", "--hit", "-0.5"), 2, "Use 0 to 1."),
        (("llama-8b", "--on", "mi300x-8", "--fetch", "loop"), 2, "'loop'"),
        (("llama-8b", "--on", "mi300x-8", "--fetch", ","), 2, "--fetch: the list is empty"),
        (("llama-8b", "--on", "mi300x-8", "--seed", "-1"), 2, "--seed"),
        (("llama-8b", "--on", "mi300x-8", "--reduce", "tree"), 2, "no way to sum"),
        (("llama-8b", "--on", "mi300x-8", "--set", "tp=3"), 2, "do not divide"),
        (("llama-8b", "--on", "mi300x-8", "--set", "tp=0"), 2, "tp=0 leaves nothing"),
        (("llama-8b", "--on", "mi300x-8", "--set", "pp=2"), 2, "pp and fsdp are not served"),
        (("llama-8b", "--on", "mi300x-8", "--overhead", "fast"), 2, "cannot parse 'fast'"),
        (("llama-8b", "--on", "mi300x-8", "--tokens", "8"), 2, "cannot serve 256 requests"),
        (("llama-8b", "--on", "mi300x-8", "--requests", "0"), 2, "are nothing"),
        (("llama-405b", "--on", "mi300x-8", "--set", "tp=1"), 1, "the weights need"),
        (("llama-8b", "--on", "switch(8)@1GB/s"), 2, "network without devices"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(capsys, arguments, code, said):
    assert main(["serve", *arguments]) == code
    assert said in capsys.readouterr().err
