import io

import pytest

from weft.cli.outputs import track, working


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_every_item_comes_through(monkeypatch, stream):
    monkeypatch.setattr("sys.stderr", stream())
    assert list(track([1, 2, 3], "counting")) == [1, 2, 3]
    assert list(track(iter("ab"), "spelling")) == ["a", "b"]


def test_nothing_is_written_where_there_is_no_terminal(monkeypatch):
    file = io.StringIO()
    monkeypatch.setattr("sys.stderr", file)
    list(track([1, 2, 3], "counting"))
    with working("on it"):
        pass
    assert file.getvalue() == ""


def test_a_terminal_sees_what_is_going_on(monkeypatch):
    file = Terminal()
    monkeypatch.setattr("sys.stderr", file)
    monkeypatch.setenv("TERM", "xterm")
    list(track([1, 2, 3], "counting"))
    with working("on it"):
        pass
    assert "counting" in file.getvalue()
    assert "on it" in file.getvalue()
