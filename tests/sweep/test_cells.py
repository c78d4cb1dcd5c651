import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import FormatError, SizeError, UsageError
from weft.sweep import CellAnswer, Journal, cells_of

values = st.lists(st.integers(1, 10**6), min_size=1, max_size=4, unique=True)


@given(batches=values, layers=values, machines=st.sampled_from(["h100-8", "h100-8,mi300x-8"]))
def test_there_is_a_cell_for_every_combination(batches, layers, machines):
    words = ["predict", "gpt2", "--on", machines]
    words += ["--set", "batch=" + ",".join(map(str, batches))]
    words += ["--set=layers=" + ",".join(map(str, layers))]
    cells = cells_of(words).cells
    assert len(cells) == len(batches) * len(layers) * len(machines.split(","))
    assert len({cell.words for cell in cells}) == len(cells)
    assert all(cell.words[:2] == ("predict", "gpt2") for cell in cells)


def test_what_has_one_value_names_no_cell():
    (cell,) = cells_of(["predict", "gpt2", "--on", "h100-8"]).cells
    assert cell.values == ()
    assert cell.name == "predict gpt2 --on h100-8"


def test_ranges_of_sizes_are_written_out():
    sizes = [cell.values for cell in cells_of(["copies", "--block", "1KiB:4KiB,1MB"]).cells]
    assert sizes == [(("block", str(size)),) for size in (1024, 2048, 4096, 1000000)]


def test_networks_keep_their_commas():
    words = [
        "collective",
        "all_reduce",
        "--on",
        "switch(8)@400GiB/s,936ns/switch(2)@50GiB/s,2us,h100-8",
    ]
    assert [dict(cell.values)["on"] for cell in cells_of(words).cells] == [
        "switch(8)@400GiB/s,936ns/switch(2)@50GiB/s,2us",
        "h100-8",
    ]


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["predict", "--on", ","], UsageError, "no cells"),
        (["predict", "--set", "batch="], UsageError, "no cells"),
        (["predict", "--set", "batch=1,1"], UsageError, "this sweep has duplicate"),
        (["predict", "gpt2", "--on"], UsageError, "--on needs a value"),
        (["copies", "--block", "4KiB:1KiB"], SizeError, "is empty"),
    ],
)
def test_sweeps_of_nothing_are_refused(words, error, said):
    with pytest.raises(error, match=said):
        cells_of(words)


def test_ten_million_cells_are_refused_before_they_are_made():
    many = ",".join(map(str, range(1, 3201)))
    words = ["predict", "--set", f"batch={many}", "--set", f"layers={many}"]
    with pytest.raises(UsageError, match="of 10240000 cells exceeds the limit of 100000"):
        cells_of(words)


def sweep(count=3):
    return cells_of(
        ["predict", "gpt2", "--set", "batch=" + ",".join(map(str, range(1, count + 1)))]
    )


def test_a_journal_is_continued(tmp_path):
    file = tmp_path / "a.sweep.jsonl"
    first = Journal.open(sweep(), file)
    first.add(CellAnswer(1, [{"seconds": 2.0}]))
    first.add(CellAnswer(2, error="its process died", again=True))
    again = Journal.open(sweep(), file)
    assert again.open_cells == [0, 2]
    assert (
        again.rows()
        == first.rows()
        == [
            {"batch": "2", "seconds": 2.0},
            {"batch": "3", "error": "its process died"},
        ]
    )
    again.add(CellAnswer(2, [{"seconds": 3.0}]))
    last = Journal.open(sweep(), file)
    assert (last.open_cells, last.failed) == ([0], 0)


@pytest.mark.parametrize("cut", [1, 5, 20])
def test_a_line_that_was_cut_is_asked_again(tmp_path, cut):
    file = tmp_path / "a.sweep.jsonl"
    journal = Journal.open(sweep(), file)
    journal.add(CellAnswer(0, [{"seconds": 1.0}]))
    journal.add(CellAnswer(1, [{"seconds": 2.0}]))
    file.write_bytes(file.read_bytes()[:-cut])
    again = Journal.open(sweep(), file)
    assert again.open_cells == [1, 2]
    again.add(CellAnswer(1, [{"seconds": 2.0}]))
    assert Journal.open(sweep(), file).open_cells == [2]


def test_results_of_another_sweep_are_refused(tmp_path):
    file = tmp_path / "a.sweep.jsonl"
    Journal.open(sweep(), file)
    with pytest.raises(UsageError, match="another sweep: predict gpt2 --set batch=1,2,3"):
        Journal.open(sweep(4), file)


@pytest.mark.parametrize("text", ["no json\n", "[1]\n", '{"weft_sweep": 99}\n', "\n", "cut"])
def test_what_is_no_journal_is_refused(tmp_path, text):
    file = tmp_path / "a.sweep.jsonl"
    file.write_text(text)
    with pytest.raises(FormatError, match="not a journal of a sweep"):
        Journal.open(sweep(), file)


def test_a_journal_is_lines_of_json(tmp_path):
    file = tmp_path / "a.sweep.jsonl"
    Journal.open(sweep(), file).add(CellAnswer(0, [{"seconds": 1.0}]))
    head, line = map(json.loads, file.read_text().splitlines())
    assert head["cells"] == 3
    assert line == {"number": 0, "rows": [{"seconds": 1.0}]}


def test_answers_for_a_file_that_has_changed_are_refused(tmp_path):
    model, path = tmp_path / "model.toml", tmp_path / "answers.csv.journal"
    model.write_text('model = "gpt2"')
    words = ["predict", str(model), "--set", "batch=8,16", "--on", "\0" * 3 + "x" * 5000]
    Journal.open(cells_of(words), path).add(CellAnswer(0, [{"seconds": 1.0}]))
    assert len(Journal.open(cells_of(words), path).answers) == 1
    model.write_text('model = "gpt2"\nlayers = 2\n')
    with pytest.raises(UsageError, match="files that it reads have changed"):
        Journal.open(cells_of(words), path)


def test_answers_for_a_folder_whose_model_has_changed_are_refused(tmp_path):
    folder, path = tmp_path / "model", tmp_path / "model" / "answers.sweep.jsonl"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 2}')
    words = ["predict", str(folder), "--set", "batch=8,16"]
    Journal.open(cells_of(words), path).add(CellAnswer(0, [{"seconds": 1.0}]))
    assert len(Journal.open(cells_of(words), path).answers) == 1  # the journal is no model
    (folder / "config.json").write_text('{"num_hidden_layers": 12}')
    with pytest.raises(UsageError, match="files that it reads have changed"):
        Journal.open(cells_of(words), path)


@pytest.mark.parametrize("number", [-1, 3, 10**30])
def test_an_answer_to_no_cell_is_no_answer_of_the_sweep(tmp_path, number):
    file = tmp_path / "a.sweep.jsonl"
    Journal.open(sweep(), file).add(CellAnswer(number, error="boo"))
    with pytest.raises(FormatError, match="not a journal of a sweep"):
        Journal.open(sweep(), file)


def test_options_of_serving_may_be_lists():
    words = ["serve", "llama-8b", "--concurrency", "8,16", "--server", "vllm,sglang"]
    assert len(cells_of(words).cells) == 4


def test_rows_of_one_cell_keep_what_distinguishes_them():
    """The strategy "all" of a cell stands for several rows, each of which has its own."""
    journal = Journal(cells_of(["c3", "--strategy", "all,dma", "--server", "vllm@0.12,vllm"]))
    rows = [{"strategy": "serial", "server": "vllm"}, {"strategy": "dma", "server": "vllm"}]
    journal.add(CellAnswer(0, rows))
    journal.add(CellAnswer(2, rows[1:]))
    assert journal.rows() == [
        {"strategy": "serial", "server": "vllm@0.12"},
        {"strategy": "dma", "server": "vllm@0.12"},
        {"strategy": "dma", "server": "vllm@0.12"},
    ]
