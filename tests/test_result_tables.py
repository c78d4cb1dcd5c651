"""Every public result has tables for pandas and a view for notebooks."""

import importlib
import pkgutil
import re
import sys

import pytest

import weft
from tests.trace.events import one_step, written
from weft.errors import UsageError
from weft.result_tables import ResultTables
from weft.timeline.step_diff import diff_sides
from weft.trace.analysis.trace_profile import side_of
from weft.trace.live.job_window import JobWindow, KindWindow, RankWindow


def traced(folder, name="trace.json"):
    return written(folder / name, one_step())


def compared(folder):
    analysis = weft.analyze(traced(folder))
    return diff_sides(side_of(analysis, "before"), side_of(analysis, "after"))


RESULTS = {
    "analysis": lambda folder: weft.analyze(traced(folder)),
    "prediction": lambda _: weft.predict("gpt2", "a100-8"),
    "plan": lambda _: weft.plan("gpt2", "a100-8"),
    "answer": lambda folder: weft.what_if(traced(folder), ["links*2"]),
    "diff": compared,
    "timeline": lambda _: weft.simulate(
        weft.collective("all_gather", "ring", num_ranks=8, nbytes=1 << 20), "a100-8"
    ),
    "window": lambda _: JobWindow(
        time=0.0,
        seconds=1.0,
        world_size=2,
        ranks=[RankWindow(0, "<i>host</i>", 3, 0.1, 0.2)],
        kinds=[KindWindow("all_reduce", 1024, 2, 3, 0.1, 0.2)],
    ),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_shows_its_first_table_in_a_notebook(name, tmp_path):
    result = RESULTS[name](tmp_path)
    html = result._repr_html_()
    first, *others = result.tables()
    rows = list(result.tables()[first]())
    assert html.count("<tr>") == min(len(rows), 20) + 1
    assert all(f'to_pandas("{other}")' in html for other in others)
    assert all(list(rows()) is not None for rows in result.tables().values())
    assert not re.search(r"<(?!/?(p|b|table|thead|tbody|tr|th|td|code)\b)", html)


def test_names_of_a_result_are_escaped(tmp_path):
    assert "&lt;i&gt;host" in RESULTS["window"](tmp_path)._repr_html_()


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_becomes_a_data_frame(name, tmp_path):
    pd = pytest.importorskip("pandas")
    result = RESULTS[name](tmp_path)
    for table, rows in result.tables().items():
        frame = result.to_pandas(table)
        assert isinstance(frame, pd.DataFrame)
        assert len(frame) == len(list(rows()))
    assert result.to_pandas().equals(result.to_pandas(next(iter(result.tables()))))


def test_an_unknown_table_is_refused(tmp_path):
    with pytest.raises(UsageError, match="unknown table 'layers'") as failed:
        RESULTS["window"](tmp_path).to_pandas("layers")
    assert "ranks, collectives" in failed.value.hint


def test_without_pandas_the_way_out_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError) as failed:
        RESULTS["window"](tmp_path).to_pandas()
    assert "pip install pandas" in failed.value.hint


def test_what_public_functions_return_has_tables():
    for package in ("weft.planner", "weft.trace", "weft.whatif", "weft.timeline"):
        home = importlib.import_module(package)
        for each in pkgutil.walk_packages(home.__path__, f"{package}."):
            importlib.import_module(each.name)
    known = {cls.__name__ for cls in ResultTables.__subclasses__()}
    assert known >= {"Analysis", "Prediction", "Plan", "Answer", "StepDiff", "Timeline"}
