"""Examples run as their users run them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.mark.torch
@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_plan_and_apply_trains_by_its_plan_and_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, EXAMPLES / "plan_and_apply.py", "--steps", "6"],
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "planned on cpu" in done.stdout
    assert "all_reduce" in done.stdout
    first, last = done.stdout.split("loss ")[1].split(" in ")[0].split(" -> ")
    assert float(last) < float(first)


@pytest.mark.torch
@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_watch_training_names_the_rank_that_loads_slowly(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [*command, EXAMPLES / "watch_training.py"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path), "STEPS": "40"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "slowest rank 1" in done.stdout
    assert "slowest is rank 1" in done.stdout
    assert (tmp_path / "overlap.html").stat().st_size > 0


@pytest.mark.torch
@pytest.mark.multiprocess
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "path", sorted((EXAMPLES / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem
)
def test_a_notebook_runs_to_its_end(path, tmp_path, monkeypatch):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    pytest.importorskip("pandas")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    book = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "clear the outputs of the notebook"
    client = nbclient.NotebookClient(
        book, timeout=90, resources={"metadata": {"path": str(path.parent)}}
    )
    client.execute()
    shown = [out for cell in book.cells for out in cell.get("outputs", ())]
    assert any("text/html" in out.get("data", {}) for out in shown)
