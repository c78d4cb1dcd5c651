"""The verb that prices single kernels."""

import json

import pytest

from weft.cli import main
from weft.cost import price
from weft.hardware import platform
from weft.schedule import Cost


def results(capsys, *arguments):
    assert main(["kernel", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)["results"]


def test_lists_of_values_are_combined(capsys):
    rows = results(capsys, "gemm", "m=1,64", "n=4096", "k=4096", "dtype=bf16,fp8", "--on", "h100-8")
    assert [(row["m"], row["dtype"]) for row in rows] == [
        (1, "bf16"),
        (1, "fp8"),
        (64, "bf16"),
        (64, "fp8"),
    ]
    want = price(Cost("gemm", (64, 4096, 4096), "fp8"), platform("h100-8").require_device())
    assert rows[3]["seconds"] == pytest.approx(want.seconds)
    assert rows[3]["low"] < rows[3]["seconds"] < rows[3]["high"]
    assert {row["basis"] for row in rows} == {"predicted"}


def test_a_file_is_priced_line_by_line_in_its_order(tmp_path, capsys):
    file = tmp_path / "gemm.csv"
    file.write_text("m,n,k,dtype\n4096,8192,1024,fp8\n1,8192,1024,bfloat16\n4096,8192,1024,fp8\n")
    rows = results(capsys, "gemm", "--from", str(file), "--on", "b200-8")
    assert [(row["m"], row["dtype"]) for row in rows] == [
        (4096, "fp8"),
        (1, "bfloat16"),
        (4096, "fp8"),
    ]
    assert rows[0]["seconds"] == rows[2]["seconds"] != rows[1]["seconds"]


def test_lookups_of_a_file_know_their_distribution(tmp_path, capsys):
    file = tmp_path / "embedding.csv"
    file.write_text("batch,rows,dim,pooling,zipf\n65536,1000000,64,20,0\n65536,1000000,64,20,1.1\n")
    uniform, skewed = results(capsys, "embedding", "--from", str(file), "--on", "a100-8")
    assert skewed["seconds"] < uniform["seconds"]
    assert (uniform["zipf"], skewed["zipf"]) == (0, 1.1)


def test_a_long_table_is_cut_on_the_screen_and_whole_in_a_file(tmp_path, capsys):
    file, sizes = tmp_path / "prices.csv", ",".join(map(str, range(1, 61)))
    arguments = [f"m={sizes}", "n=64", "k=64", "--on", "h100-8", "-o", str(file)]
    assert main(["kernel", "gemm", *arguments]) == 0
    said = capsys.readouterr().out
    assert "gemm on h100-8" in said
    assert "and 20 more" in said
    assert len(file.read_text().splitlines()) == 61


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("gemm", "m=1", "n=1", "k=1"), "--on is missing"),
        (("gemm", "m", "--on", "h100-8"), "parse 'm'"),
        (("gemm", "m=1", "n=2", "--on", "h100-8"), "gemm needs k"),
        (("gemm", "m=1", "n=2", "k=3", "w=4", "--on", "h100-8"), "column 'w'"),
        (
            ("gemm", "m=x", "n=2", "k=3", "--on", "h100-8"),
            "row 1: cannot parse 'x'",
        ),
        (("gemms", "m=1", "--on", "h100-8"), "Did you mean 'gemm'?"),
        (("gemm", "--from", "nowhere.csv", "--on", "h100-8"), "nowhere.csv"),
        (("gemm", "m=1,2", "--from", "nowhere.csv", "--on", "h100-8"), "a list of values"),
        (
            ("embedding", "batch=1", "rows=1", "dim=1", "bin3=-1", "--on", "h100-8"),
            "bin3 of embedding must be 0 or more",
        ),
        (("gemm", "m=1", "n=2", "k=3", "--on", "switch(8)@1GB/s"), "a network without devices"),
    ],
)
def test_what_cannot_be_priced_is_said_in_a_line(capsys, arguments, said):
    assert main(["kernel", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_a_key_or_column_that_is_given_twice_is_refused(capsys, tmp_path):
    assert main(["kernel", "gemm", "m=1", "m=2", "n=4", "k=4", "--on", "h100-8"]) == 2
    assert "m is given twice" in capsys.readouterr().err
    file = tmp_path / "kernels.csv"
    file.write_text("m,n,k,m\n1,2,3,4\n")
    assert main(["kernel", "gemm", "--from", str(file), "--on", "h100-8"]) == 2
    assert "several columns 'm'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["m,n,k\n", ""])
def test_a_file_without_rows_is_refused(tmp_path, capsys, text):
    file = tmp_path / "empty.csv"
    file.write_text(text)
    assert main(["kernel", "gemm", "--from", str(file), "--on", "h100-8"]) == 2
    assert "has no rows" in capsys.readouterr().err


def test_a_kernel_is_predicted_for_a_device_by_name(capsys):
    shape = ("m=8192", "n=8192", "k=8192")
    (alone,) = results(capsys, "gemm", *shape, "--on", "h100")
    (inside,) = results(capsys, "gemm", *shape, "--on", "h100-8")
    assert alone == inside


def test_a_value_with_a_unit_is_refused_with_what_to_write(capsys):
    assert main(["kernel", "gemm", "m=8k", "n=1", "k=1", "--on", "h100"]) == 2
    told = capsys.readouterr().err
    assert "'8k'" in told
    assert "m=8192" in told
