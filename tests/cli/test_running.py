import json

import numpy as np
import pytest

from weft.cli import main
from weft.cli.running import Values, dtype_for
from weft.collectives import KINDS, algorithms, collective


def results(capsys, *arguments, code=0):
    assert main(["collective", *arguments, "--run", "--json"]) == code
    return json.loads(capsys.readouterr().out)["results"]


@pytest.mark.multiprocess
def test_measured_stands_next_to_predicted(capsys):
    measured, predicted = results(capsys, "all_gather", "--size", "64KiB", "--algorithm", "ring")
    assert measured["basis"] == "measured"
    assert predicted["basis"] == "predicted"
    assert measured["wrong"] == 0
    assert measured["ranks"] == predicted["ranks"] == 2
    assert measured["algbw"] == measured["nbytes"] / measured["seconds"]


@pytest.mark.multiprocess
@pytest.mark.parametrize("kind", KINDS)
def test_every_collective_gives_the_values_of_numpy(capsys, kind):
    rows = results(capsys, kind, "--size", "96", "--ranks", "3", "--algorithm", "all")
    assert len(rows) >= 2
    assert all(row["wrong"] == 0 for row in rows if row["basis"] == "measured")


@pytest.mark.multiprocess
def test_a_run_is_drawn_and_written_with_its_prediction(capsys, tmp_path):
    path = tmp_path / "both.json"
    arguments = ["all_reduce", "--run", "--size", "4KiB", "--timeline", "-o", str(path)]
    assert main(["collective", *arguments]) == 0
    assert "predicted on cpu" in capsys.readouterr().out
    events = json.loads(path.read_text())["traceEvents"]
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert {"measured: rank 0", "measured: rank 1"} <= names
    assert any(name.startswith("predicted: rank 0") for name in names)


@pytest.mark.multiprocess
def test_wrong_values_are_counted_and_end_with_1(capsys, monkeypatch):
    from weft.cli import running

    def off_by_one(found, outcomes):
        return joined(found, [outcome._replace(wrong=1) for outcome in outcomes])

    joined = running._joined
    monkeypatch.setattr(running, "_joined", off_by_one)
    rows = results(capsys, "all_gather", "--size", "1KiB", code=1)
    assert rows[0]["wrong"] == 2


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_the_sum_is_that_of_all_ranks(dtype):
    values = Values("all_reduce", 3, 64, dtype)
    total = sum(values.give(rank).astype(np.float64) for rank in range(3))
    assert np.array_equal(values.want(1).view(dtype), total)


def test_each_rank_gets_its_share_of_a_reduce_scatter():
    values = Values("reduce_scatter", 4, 64, "float32")
    whole = Values("all_reduce", 4, 64, "float32").want(0)
    assert np.array_equal(np.concatenate([values.want(rank) for rank in range(4)]), whole)


def test_an_all_to_all_transposes():
    values = Values("all_to_all", 2, 8)
    first, second = values.give(0), values.give(1)
    assert values.want(0).tolist() == [*first[:4], *second[:4]]
    assert values.want(1).tolist() == [*first[4:], *second[4:]]


@pytest.mark.parametrize(
    ("kind", "nbytes", "dtype"),
    [
        ("all_reduce", 8, "float32"),
        ("all_reduce", 9, "uint8"),
        ("reduce", 8, "float32"),
        ("reduce_scatter", 16, "float32"),
        ("reduce_scatter", 8, "uint8"),
        ("all_gather", 16, "uint8"),
    ],
)
def test_floats_are_added_where_they_fit(kind, nbytes, dtype):
    assert dtype_for(kind, nbytes, 4) == dtype


@pytest.mark.parametrize("kind", KINDS)
def test_buffers_start_with_the_size_they_are_declared_with(kind):
    for algorithm in algorithms(kind):
        node_size = 2 if algorithm == "hierarchical" else None
        made = collective(kind, algorithm, num_ranks=4, nbytes=64, node_size=node_size)
        for rank in range(4):
            start = Values(kind, 4, 64).start(made, rank)
            sizes = {b.name: b.size_on(rank) for b in made.buffers if b.name in start}
            assert sizes == {name: array.nbytes for name, array in start.items()}
