import json

import pytest

import validation
from validation import group_runs
from validation.group_runs import GroupPart, grouped_targets

pytestmark = pytest.mark.thorough

PART = GroupPart("nccl", "")


@pytest.fixture
def kept_here(monkeypatch, tmp_path):
    """Figures of one group, kept in a folder of our own, with one file that they came from."""
    monkeypatch.setattr(group_runs, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(group_runs, "data_fingerprint", lambda: "tables")
    source = tmp_path / "model.py"
    source.write_text("RATE = 1\n")
    monkeypatch.setattr(group_runs, "_loaded", lambda: [source])
    group_runs._digest.cache_clear()
    monkeypatch.delenv("WEFT_DATA", raising=False)
    group_runs.compute(PART)
    return source


def test_figures_are_read_while_nothing_they_came_from_changes(kept_here, monkeypatch):
    monkeypatch.setattr(GroupPart, "run", lambda part: pytest.fail(f"{part} was computed again"))
    group = validation.find_group("nccl")
    found = grouped_targets([group])
    assert [target.name for target in found["nccl"]] == [each.name for each in group.targets()]
    assert kept_here.exists()


def test_a_changed_source_makes_figures_old(kept_here):
    kept_here.write_text("RATE = 2\n")
    group_runs._digest.cache_clear()
    assert PART.kept() is None


def test_what_is_edited_while_figures_are_computed_makes_them_old(kept_here, monkeypatch):
    def edited():
        kept_here.write_text("RATE = 2\n")
        return [kept_here]

    monkeypatch.setattr(group_runs, "_candidates", lambda: [kept_here])
    monkeypatch.setattr(group_runs, "_loaded", edited)
    group_runs.compute(PART)
    group_runs._digest.cache_clear()
    assert PART.kept() is None


def test_changed_tables_make_figures_old(kept_here, monkeypatch):
    monkeypatch.setattr(group_runs, "data_fingerprint", lambda: "other tables")
    assert PART.kept() is None


def test_a_broken_file_makes_figures_old(kept_here):
    PART.file.write_text(PART.file.read_text()[:-20])
    assert PART.kept() is None


def test_a_group_is_computed_in_a_process_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_KEPT_FIGURES", str(tmp_path))
    monkeypatch.setattr(group_runs, "KEPT", tmp_path)
    groups = [validation.find_group(name) for name in ("broadcast", "stacks")]
    found = grouped_targets(groups, processes=2)
    assert found["broadcast"] == list(groups[0].targets())
    kept = json.loads(GroupPart("broadcast", "").file.read_text())
    loaded = {path.rsplit("/", 1)[1] for path in kept["files"]}
    assert {"broadcast.py", "v100-8.toml"} <= loaded
    assert any(name.startswith("_core") for name in loaded)
    assert "serving_rows.py" not in loaded


@pytest.mark.parametrize("name", validation.group_names())
def test_parts_of_a_group_have_names_for_files(name):
    parts = validation.find_group(name).parts
    assert len(set(parts)) == len(parts) >= 1
    assert all(part.replace("-", "").isalnum() or parts == ("",) for part in parts)
