import json

import pytest

from weft.cli import main
from weft.errors import RunError


@pytest.mark.multiprocess
def test_the_tour_shows_every_part_and_leaves_traces(capsys, tmp_path):
    folder = tmp_path / "tour"
    assert main(["tour", "-o", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "native core" in text
    assert "8 ranks on mi300x-8, predicted" in text
    assert "2 ranks here, measured beside predicted on cpu" in text
    traces = sorted(path.name for path in folder.iterdir())
    assert traces == [
        "predicted-all_gather.json",
        "predicted-all_reduce.json",
        "predicted-all_to_all.json",
        "run-all_gather.json",
        "run-all_reduce.json",
    ]
    for name in traces:
        assert f"wrote {folder / name}" in text
        assert json.loads((folder / name).read_text())["traceEvents"]


def test_a_part_that_fails_does_not_stop_the_tour(capsys, tmp_path, monkeypatch):
    def fail(*_arguments, **_options):
        raise RunError("no shared memory.", "Give it some.")

    monkeypatch.setattr("weft.cli.running.measured", fail)
    assert main(["tour", "-o", str(tmp_path)]) == 1
    written = capsys.readouterr()
    assert written.err == "weft: RunError: no shared memory.\nGive it some.\n"
    assert "predicted" in written.out
    assert "Next:" in written.out


def test_a_folder_that_cannot_be_made_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    assert main(["tour", "-o", str(tmp_path / "file" / "tour")]) == 2
    assert "cannot write into" in capsys.readouterr().err
