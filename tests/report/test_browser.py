"""Pages in Chromium: drawn without a complaint, and used by mouse, touch, keys and ear."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.browser import Browser
from tests.report.pictures import drawn, unpacked
from tests.report.test_pages import HOSTILE, analysed
from weft.report.analysis_page import page
from weft.report.interactive_timeline import timeline_section
from weft.report.page import html_page
from weft.report.picture import PictureLine, packed
from weft.trace import StepAdvice, analyze

pytestmark = pytest.mark.browser
READY = "document.querySelector('.stage')?.dataset.drawn === 'yes'"
CONTROL = "document.querySelector('[data-timeline]').control"
COLOURS = (
    "(() => { const c = document.querySelector('canvas');"
    "const p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
    "return new Set(new Uint32Array(p.buffer)).size; })()"
)


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


@pytest.fixture
def show(browser, tmp_path):
    """Open a page and wait for its timeline."""

    def opened(text, **options):
        file = tmp_path / "page.html"
        file.write_text(text, encoding="utf-8")
        browser.open(file, **options)
        browser.until(READY)
        return browser

    return opened


@pytest.fixture
def timeline(show):
    """Three spans on two lines of one rank, one on a thread of its host, in a page of 1280 px."""
    lines = [
        PictureLine("rank 0", "stream 7"),
        PictureLine("rank 0", "stream 8"),
        PictureLine("rank 0", "t", quiet=True),
    ]
    spans = [(0, 0, 0, 4), (0, 1, 5, 6), (1, 2, 2, 8), (2, 3, 0, 1)]
    picture = drawn(spans, paths=[[0, 2]], of=lines)
    return show(html_page("t", [timeline_section(picture, "Timeline", "")]))


def view(browser):
    return browser.evaluate(f"[{CONTROL}.drawing.from, {CONTROL}.drawing.to]")


def said(browser):
    return browser.evaluate("document.querySelector('.detail').textContent")


def place_of(browser, span):
    """Where the middle of a span is to be seen in the window, once the next frame is drawn."""
    browser.evaluate(
        "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    return browser.evaluate(
        f"(() => {{ const c = {CONTROL}, d = c.drawing, s = c.spans;"
        "const box = c.parts.canvas.getBoundingClientRect();"
        f"const x = d.x((s.start[{span}] + s.end[{span}]) / 2);"
        f"const y = d.placeOf(s.rowOf[{span}]).y - d.top + 6;"
        "return [box.left + x, box.top + y]; })()"
    )


def into_view(browser):
    browser.evaluate("document.querySelector('.stage').scrollIntoView({block: 'center'})")
    browser.evaluate("document.querySelector('.stage').focus()")


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True])
def test_a_report_is_drawn_without_a_complaint(show, tmp_path, width, dark):
    browser = show(page(analysed(tmp_path)), width=width, dark=dark)
    assert browser.complaints == []
    assert len(browser.requests) == 1  # the file itself
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    paper = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (not dark)
    assert browser.evaluate(COLOURS) > 5
    # A canvas of a new size is empty: it is drawn before anyone can see it.
    assert browser.evaluate(f"({CONTROL}.resize(), {COLOURS})") > 5


def test_long_names_in_advice_do_not_widen_a_phone(show, tmp_path):
    advice = StepAdvice("Load data ahead", 1e-3, f"it was in {'iterator_' * 20}", "try " + "x" * 99)
    browser = show(page(replace(analysed(tmp_path), advice=(advice,))), width=390)
    assert browser.evaluate("document.documentElement.scrollWidth") == 390


def test_names_from_a_trace_are_shown_and_never_carried_out(show, tmp_path):
    browser = show(page(analysed(tmp_path, HOSTILE)))
    assert browser.complaints == []
    assert browser.evaluate("document.images.length") == 0
    assert "onerror=alert(1)" in browser.evaluate("document.body.textContent")
    assert browser.evaluate(f"{CONTROL}.spans.data.labels.some(([name]) => name.includes('<img'))")


def test_the_page_reads_the_spans_that_were_packed(show):
    rng = np.random.default_rng(3)
    start = np.cumsum(rng.integers(0, 10**6, 2000)) * 1e-3
    spans = [(i % 3, i % 10, s, s + rng.random() * 5000) for i, s in enumerate(start.tolist())]
    picture = drawn(spans)
    browser = show(html_page("t", [timeline_section(picture, "Timeline", "")]))
    have = browser.evaluate(
        f"(() => {{ const s = {CONTROL}.spans; return Array.from(s.start, (start, i) =>"
        "[s.data.rows[s.rowOf[i]], s.nameOf(i), start, s.end[i]]); })()"
    )
    assert [tuple(span) for span in have] == unpacked(packed(picture))


def test_keys_zoom_move_and_go_from_span_to_span(timeline):
    into_view(timeline)
    timeline.key("+")
    assert view(timeline) == [2e9, 6e9]
    timeline.key("d")
    assert view(timeline) == pytest.approx([2.8e9, 6.8e9])
    timeline.key("0")
    assert view(timeline) == [0, 8e9]
    timeline.key("ArrowRight")
    assert said(timeline).startswith("name 0. computation, rank 0, stream 7")
    assert "on the critical path" in said(timeline)
    timeline.key("ArrowRight")
    assert said(timeline).startswith("name 1")
    timeline.key("ArrowDown")
    assert said(timeline).startswith("name 2")
    timeline.key("Enter")
    assert view(timeline) == [0, 8e9]  # a span and as much on both sides is more than there is
    timeline.key("Escape")
    assert said(timeline) == "4 spans over 8 s."
    timeline.key("/")
    assert timeline.evaluate("document.activeElement.type") == "search"


def test_search_counts_and_steps_through_what_it_finds(timeline):
    timeline.evaluate("document.querySelector('[type=search]').focus()")
    for letter in "NAME 1":
        timeline.key(letter)
    found = timeline.evaluate("document.querySelector('[data-part=found]').textContent")
    assert found == "1 found, 1 s in all"
    timeline.key("Enter")
    assert said(timeline).startswith("name 1")


def test_without_a_search_next_goes_along_the_critical_path(timeline):
    for name in ("name 0", "name 2", "name 0"):
        timeline.evaluate("document.querySelector('[data-do=next]').click()")
        assert said(timeline).startswith(name)


def test_the_host_is_shown_on_request(timeline):
    rows = f"{CONTROL}.drawing.places.length"
    quiet = "document.querySelector('[data-part=quiet]')"
    assert timeline.evaluate(f"{quiet}.checked")  # one rank leaves room for its host
    before = timeline.evaluate(rows)
    timeline.evaluate(f"{quiet}.click()")
    assert timeline.evaluate(rows) == before - 1


def test_the_wheel_zooms_where_the_mouse_is_and_only_with_control(timeline):
    into_view(timeline)
    x, y = place_of(timeline, 1)
    timeline.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
    assert view(timeline) == [0, 8e9]
    timeline.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400, modifiers=2)
    start, end = view(timeline)
    assert end - start < 8e9
    assert place_of(timeline, 1)[0] == pytest.approx(x, abs=2)


def test_a_drag_moves_and_a_click_selects(timeline):
    into_view(timeline)
    timeline.key("+")
    x, y = place_of(timeline, 1)
    timeline.mouse("mousePressed", x, y, button="left", clickCount=1)
    timeline.mouse("mouseReleased", x, y, button="left", clickCount=1)
    assert said(timeline).startswith("name 1")
    before = view(timeline)
    timeline.mouse("mousePressed", x, y, button="left", clickCount=1)
    timeline.mouse("mouseMoved", x - 100, y, button="left", buttons=1)
    timeline.mouse("mouseReleased", x - 100, y, button="left", clickCount=1)
    assert view(timeline)[0] > before[0]
    assert place_of(timeline, 1)[0] == pytest.approx(x - 100, abs=2)


def test_a_tip_follows_the_mouse(timeline):
    into_view(timeline)
    tip = "document.querySelector('.tip')"
    timeline.mouse("mouseMoved", *place_of(timeline, 0))
    assert timeline.evaluate(f"{tip}.firstChild.textContent") == "name 0"
    assert timeline.evaluate(f"{tip}.hidden") is False
    timeline.mouse("mouseMoved", 2, 2)
    assert timeline.evaluate(f"{tip}.hidden") is True


def test_two_fingers_zoom(timeline):
    into_view(timeline)
    x, y = place_of(timeline, 1)

    def touch(kind, *xs):
        points = [{"x": each, "y": y, "id": number} for number, each in enumerate(xs)]
        timeline.ask("Input.dispatchTouchEvent", type=kind, touchPoints=points)

    timeline.ask("Emulation.setTouchEmulationEnabled", enabled=True, maxTouchPoints=2)
    touch("touchStart", x - 20, x + 20)
    touch("touchMove", x - 60, x + 60)
    touch("touchMove", x - 120, x + 120)
    touch("touchEnd")
    timeline.ask("Emulation.setTouchEmulationEnabled", enabled=False)
    start, end = view(timeline)
    assert end - start < 4e9


@pytest.mark.parametrize("zoom", [1, 0.1, 0.001])
def test_what_is_drawn_is_bounded_by_pixels_not_by_spans(show, zoom):
    count = 100_000
    spans = [(i % 3, i % 10, i * 1e-3, i * 1e-3 + 2e-3) for i in range(count)]
    browser = show(html_page("t", [timeline_section(drawn(spans), "Timeline", "")]))
    drawings = browser.evaluate(
        f"(() => {{ const c = {CONTROL}, d = c.drawing; let n = 0; const own = d.pen.fillRect;"
        "d.pen.fillRect = (...a) => { n += 1; own.apply(d.pen, a); };"
        f"d.to = d.from + c.spans.duration * {zoom}; d.draw(); delete d.pen.fillRect;"
        "return [c.spans.count, n, d.width * d.places.length]; })()"
    )
    assert drawings[0] == count
    assert 0 < drawings[1] <= drawings[2] / 2 + 200


def test_everything_to_use_has_a_name_for_screen_readers(timeline):
    tree = timeline.ask("Accessibility.getFullAXTree")["nodes"]
    parts = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree
        if not node.get("ignored")
    ]
    used = {"button", "searchbox", "checkbox", "combobox", "application", "image", "region"}
    assert all(name for role, name in parts if role in used)
    assert ("application", "Timeline") in parts
    assert ("searchbox", "Search the names of spans") in parts
    assert {"heading", "main", "status"} <= {role for role, _ in parts}


def test_a_browser_that_ended_is_named(tmp_path):
    from weft.errors import RunError

    with Browser() as opened:
        opened._process.kill()
        with pytest.raises(RunError, match=r"Chromium ended|Broken pipe"):
            opened.evaluate("1")


@pytest.mark.data
def test_the_report_of_eight_ranks_is_small_and_drawn(show, data):
    text = page(analyze(sorted((data / "param_dlrm_8xV100" / "kineto").glob("*.gz"))))
    assert len(text.encode()) < 3_000_000
    browser = show(text)
    assert browser.complaints == []
    assert browser.evaluate(f"{CONTROL}.drawing.headings.map((h) => h.name)") == [
        f"rank {i}" for i in range(8)
    ]
