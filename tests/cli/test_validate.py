import csv
import json
from types import SimpleNamespace

import pytest

import validation
from validation import Group, Target
from weft.cli import main
from weft.report.svg import Axis, Chart

GOOD = Target("toy", "met & <shown>", 10.0, "us", "a paper", 10.1, 5.0)
PLOT = Chart("a plot", Axis("x", [0, 1]), Axis("y", [0, 1]), [])
BAD = Target("toy", "missed", 10.0, "us", "a paper", 20.0, 5.0, fitted=True)


@pytest.fixture
def toy(monkeypatch):
    """A group of figures of our own, in place of what the package has."""

    def put(*targets):
        module = SimpleNamespace(targets=lambda: iter(targets), plots=lambda: {"one": PLOT})
        monkeypatch.setattr(validation, "group_names", lambda: ("toy",))
        monkeypatch.setattr(validation, "find_group", lambda name: Group(name, "Is it so?", module))

    return put


def test_the_code_says_whether_all_figures_are_met(toy, capsys):
    toy(GOOD)
    assert main(["validate"]) == 0
    toy(GOOD, BAD)
    assert main(["validate"]) == 1
    assert "1 of 2 within what is allowed; of those that were not fitted to 1 of 1." in (
        capsys.readouterr().out
    )


def test_json_has_the_keys_of_the_contract(toy, capsys):
    toy(GOOD)
    assert main(["validate", "toy", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["results"]
    keys = {"target", "scenario", "published", "weft", "error", "tolerance", "fitted", "citation"}
    assert keys <= row.keys()
    assert row["error"] == pytest.approx(1.0)


def test_a_page_is_written(toy, tmp_path, capsys):
    toy(GOOD, BAD)
    file = tmp_path / "figures.html"
    assert main(["validate", "-o", str(file)]) == 1
    text = file.read_text()
    assert "met &amp; &lt;shown&gt;" in text
    assert text.count("<tr class=") == 2
    assert "<svg" in text
    assert "src=" not in text  # nothing is loaded from elsewhere
    assert f"wrote {file}" in capsys.readouterr().out


def test_a_page_keeps_the_sections_of_groups_that_were_not_computed(monkeypatch, tmp_path):
    shown = {"toy": GOOD, "yoyo": BAD}
    monkeypatch.setattr(validation, "group_names", lambda: ("toy", "yoyo"))
    monkeypatch.setattr(
        validation,
        "find_group",
        lambda name: Group(
            name, "Is it so?", SimpleNamespace(targets=lambda: iter((shown[name],)))
        ),
    )
    page = tmp_path / "accuracy.md"
    for name in ("yoyo", "toy", "yoyo"):
        main(["validate", name, "-o", str(page)])
    text = page.read_text()
    assert text.count("# How far off is weft?") == 1
    assert text.index("## toy") < text.index("## yoyo")
    assert text.count("| met & &lt;shown> |") == text.count("| missed |") == 1
    shown["yoyo"] = GOOD
    main(["validate", "yoyo", "-o", str(page)])
    assert page.read_text().count("| met & &lt;shown> |") == 2


def test_rows_are_written(toy, tmp_path):
    toy(GOOD)
    file = tmp_path / "figures.csv"
    assert main(["validate", "-o", str(file)]) == 0
    with file.open() as lines:
        assert [row["scenario"] for row in csv.DictReader(lines)] == [GOOD.name]


def test_an_unknown_group_gets_a_suggestion(capsys):
    assert main(["validate", "late"]) == 2
    assert "Did you mean 'latte'?" in capsys.readouterr().err


def test_a_suffix_that_says_nothing_is_refused(capsys):
    assert main(["validate", "-o", "figures.png"]) == 2
    assert ".html" in capsys.readouterr().err


def test_plots_are_drawn_into_a_folder(monkeypatch, tmp_path, capsys):
    module = SimpleNamespace(targets=lambda: iter((GOOD,)), plots=lambda: {"a-plot": PLOT})
    monkeypatch.setattr(validation, "find_group", lambda name: Group(name, "Is it so?", module))
    folder = tmp_path / "new"
    assert main(["validate", "toy", "--plots", str(folder)]) == 0
    assert (folder / "toy-a-plot.svg").read_text() == PLOT.svg()
    assert "wrote" in capsys.readouterr().out
