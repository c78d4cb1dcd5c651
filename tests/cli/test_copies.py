import json

import pytest

from weft.cli import main


def test_every_way_is_priced(capsys):
    assert main(["copies", "--on", "mi300x-8", "--block", "4KiB,32KiB", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert [(row["block"], row["method"]) for row in rows][:4] == [
        (4096, "per-copy"),
        (4096, "batched"),
        (4096, "b2b"),
        (4096, "kernel"),
    ]
    taken = [row["seconds"] for row in rows[:4]]
    assert taken == sorted(taken, reverse=True)
    assert all(row["rate"] == pytest.approx(row["nbytes"] / row["seconds"]) for row in rows)


def test_a_table_is_printed_and_rows_are_written(tmp_path, capsys):
    file = tmp_path / "copies.csv"
    arguments = ["--on", "mi300x-8", "--method", "b2b", "--engines", "2", "--count", "64"]
    assert main(["copies", *arguments, "-o", str(file)]) == 0
    assert "64 blocks from the host to one device of mi300x-8" in capsys.readouterr().out
    assert file.read_text().startswith("method,block,count")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--on is missing"),
        (("--on", "mi300x-8", "--method", "per-cop"), "Did you mean 'per-copy'?"),
        (("--on", "mi300x-8", "--method", "b2b", "--engines", "9"), "Use 1 to 2."),
        (("--on", "mi300x-8", "--count", "0"), "num_blocks and block_bytes must"),
        (
            (
                "--on",
                "switch(8)@1GB/s",
            ),
            "platform switch(8)@1GB/s does not",
        ),
    ],
)
def test_what_cannot_be_fetched_is_said_in_a_line(capsys, arguments, said):
    assert main(["copies", *arguments]) == 2
    assert said in capsys.readouterr().err
