"""The benchmark of pages: what it opens, and what it says where it cannot."""

import pytest

from benchmarks import browser, report
from benchmarks.rows import Options
from tests.trace.events import job
from weft.errors import RunError, RunTimeoutError, UsageError


def test_without_the_data_it_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="measured data") as caught:
        report._files()
    assert "WEFT_DATA" in caught.value.hint


def test_without_a_browser_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(browser, "find_browser", lambda: None)
    with pytest.raises(RunError, match="no Chromium") as caught:
        browser.Browser()
    assert "apt-get install chromium" in caught.value.hint


@pytest.mark.browser
def test_a_row_says_when_the_page_was_painted_and_how_large_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(report, "_files", lambda: {"toy": job(tmp_path, (200.0, 700.0))})
    (row,) = report.run(Options(rounds=2))
    assert row.case == {"trace": "toy"}
    assert all(0 < time < row.more["timeline_drawn"] + 10 for time in row.times)
    assert 10_000 < row.more["nbytes"] < report.LIMIT_BYTES
    assert row.more["complaints"] == 0


@pytest.mark.browser
def test_what_a_page_complains_about_is_kept(tmp_path):
    file = tmp_path / "bad.html"
    file.write_text("<script>console.error('one'); throw new Error('two')</script>")
    with browser.Browser() as opened:
        opened.open(file)
        opened.until("true")
        assert [text.split("\n")[0] for text in opened.complaints] == ["one", "Error: two"]
        with pytest.raises(RunError, match="the script failed"):
            opened.evaluate("nothing.there")
        with pytest.raises(RunError, match=r"answered No\.such"):
            opened.ask("No.such")
        opened.timeout = 0.3
        with pytest.raises(RunTimeoutError, match="did not become true"):
            opened.until("false")
        with pytest.raises(RunTimeoutError, match="did not answer"):
            opened.await_event("No.event")
