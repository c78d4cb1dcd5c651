"""What holds for every page that weft writes: tables for all plots, nothing loaded, all escaped."""

from html.parser import HTMLParser

import pytest

import weft
from tests.spans import handshake, overlapping
from tests.trace.events import all_reduce, event, job, kernel, launch, mark, written
from weft.report.analysis_page import page as analysis_page
from weft.report.bars import ChartBar, bar_chart
from weft.report.collectives_page import collective_page, pairs_page
from weft.report.page import Section, html_page, tiles
from weft.report.svg import Axis, Chart, Series, log_ticks
from weft.report.text import Column
from weft.timeline.kernel_names import short_name
from weft.trace import analyze

HOSTILE = "</script><img src=x onerror=alert(1)> & \"quoted\" 'too' \ud800"
VOID = {"meta", "link", "br", "input", "img", "rect", "line", "circle", "polyline"}


class Read(HTMLParser):
    """Elements in order, whether they are closed in order, and what they refer to."""

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.wrong = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def all(self, tag):
        return [attrs for name, attrs in self.found if name == tag]


def rows_of_a_collective(name="ring", sizes=(1024, 4096)):
    return [
        {
            "collective": "all_reduce",
            "algorithm": name,
            "nbytes": size,
            "ranks": 2,
            "seconds": 1e-5,
            "algbw": size / 1e-5,
            "busbw": size / 1e-5,
            "basis": "predicted",
        }
        for size in sizes
    ]


def rows_of_a_pair(strategy="dma"):
    first = {"scenario": "one", "gemm": "1x2x3", "collective": "all_gather", "nbytes": 64}
    times = {"t_compute": 2e-3, "t_comm": 1e-3, "serial": 3e-3, "ideal": 2e-3, "seconds": 2.5e-3}
    more = {"strategy": strategy, "units": None, "speedup": 1.2, "percent_of_ideal": -0.2}
    return [first | times | more | {"class": "G-long", "why": ""}]


def analysed(folder, name="gemm"):
    """Two ranks, one of them late, with a kernel of that name."""
    paths = job(folder, (200.0, 700.0))
    extra = [
        mark(1, 0, 90),
        launch(1, 1),
        kernel(10, 30, name, correlation=1),
        event(name, "cpu_op"),
    ]
    paths.append(written(folder / "other.json", [*extra, all_reduce(50, 20)], rank=5))
    return analyze(paths)


def pages(folder):
    return {
        "analysis": analysis_page(analysed(folder)),
        "hostile": analysis_page(analysed(folder, HOSTILE)),
        "collective": collective_page("p", rows_of_a_collective(HOSTILE), [handshake()]),
        "one size": collective_page("p", rows_of_a_collective(sizes=(64,)), [handshake()]),
        "pairs": pairs_page("p", rows_of_a_pair(HOSTILE)),
        "table": html_page(
            HOSTILE, [Section(HOSTILE, HOSTILE, [Column("a", HOSTILE)], [{"a": HOSTILE}])]
        ),
        "no rows": html_page("t", [], top=tiles([(HOSTILE, HOSTILE, HOSTILE)])),
    }


KINDS = ("analysis", "hostile", "collective", "one size", "pairs", "table", "no rows")


@pytest.fixture(params=KINDS)
def read(request, tmp_path):
    return Read(pages(tmp_path)[request.param].encode().decode())


def test_elements_are_closed_in_order(read):
    assert (read.wrong, read.open) == ([], [])


def test_nothing_is_loaded_from_elsewhere(read):
    assert not read.all("img")
    assert {each["href"][:1] for each in read.all("a")} <= {"#"}
    assert [each["href"] for each in read.all("link")] == ["data:,"]
    assert not [attrs for _, attrs in read.found if "src" in attrs]


def test_names_of_elements_are_given_once_and_links_lead_to_one(read):
    ids = [attrs["id"] for _, attrs in read.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {each["href"][1:] for each in read.all("a")} <= set(ids)


def test_every_drawing_has_a_name_and_every_section_with_one_a_table(read):
    figures = [each for each in read.all("figure") if each.get("role") == "img"]
    assert all(each["aria-label"] for each in figures)
    tags = [tag for tag, _ in read.found]
    sections = " ".join(tags).split("section")[1:]
    assert all("table" in part for part in sections if "figure" in part or "canvas" in part)


def test_only_the_scripts_of_weft_may_run(read):
    scripts = [each for each in read.all("script") if "type" not in each]
    (policy,) = [each for each in read.all("meta") if "http-equiv" in each]
    assert policy["content"].startswith("default-src 'none'")
    assert ("sha256-" in policy["content"]) == bool(scripts)
    assert not [attrs for _, attrs in read.found if any(key.startswith("on") for key in attrs)]


def test_what_to_do_first_stands_above_all_plots(tmp_path):
    text = analysis_page(analysed(tmp_path))
    assert text.index("Find out why rank 1 is late") < text.index("<figure")
    assert 1 <= text.count("<li><p><strong>") <= 3


def test_a_trace_without_gpu_events_has_a_page_that_says_so(tmp_path):
    text = analysis_page(analyze(written(tmp_path / "a.json", [event("aten::add", "cpu_op")])))
    assert "contain no GPU events" in text


def test_parts_of_a_rank_fill_its_mean_step(tmp_path):
    from weft.report.breakdown import by_rank, split_parts

    analysis = analysed(tmp_path)
    section = by_rank(analysis.ranks)
    for rank, row in zip(analysis.ranks, section.rows, strict=True):
        assert row["all"] == pytest.approx(rank.seconds)
        idle = sum(value for key, value in row.items() if key.startswith("idle"))
        assert idle == pytest.approx(rank.mean_idle)
        assert sum(split_parts(rank.total).values()) == pytest.approx(rank.total.busy)


def test_one_size_is_shown_by_its_times_and_several_by_their_bandwidth():
    one = collective_page("p", rows_of_a_collective(sizes=(64,)), [handshake()])
    several = collective_page("p", rows_of_a_collective(), [handshake()])
    assert "shorter is better" in one
    assert "bandwidth by size" not in one
    assert "higher is better" in several


def test_collectives_are_summed_by_kind_and_size(tmp_path):
    from weft.report.exchanges import bandwidth_section, collectives_section

    analysis = analyze(job(tmp_path, (200.0, 700.0)))
    section = collectives_section(analysis.ranks)
    assert section is not None
    (row,) = section.rows
    assert (row["name"], row["count"]) == ("all_reduce 4 KiB fp32", 6)
    assert row["waiting"] == pytest.approx(3 * 500e-6)
    assert row["moving"] == pytest.approx(6 * 200e-6)
    bandwidth = bandwidth_section(analysis.ranks)
    assert bandwidth is not None
    assert len(bandwidth.rows) == 6
    assert "dot-0" in bandwidth.drawings[0]


def test_bars_are_as_long_as_their_values():
    bars = [ChartBar("a", {"x": 3.0, "y": 1.0}), ChartBar("b", {"x": 2.0}, low=1.0, high=8.0)]
    text = bar_chart(bars, {"x": "copy", "y": "idle"}, label="l", line=4.0)
    assert 'class="k-copy" style="width:37.500%"' in text
    assert 'class="k-idle" style="width:12.500%" title="y: 1 s (25 %)"' in text
    assert '<b style="left:12.500%;width:87.500%">' in text
    assert "left:min(50.000%, 100% - 2px)" in text


def test_bars_of_nothing_are_empty():
    assert "k-copy" not in bar_chart([ChartBar("a", {"x": 0.0})], {"x": "copy"}, label="l")


def test_a_chart_is_drawn_for_wide_and_for_narrow_windows():
    chart = Chart(
        "t", Axis("x", [1, 2]), Axis("y", [1, 2]), [Series("s", [1], [2], "dots", labels=["<"])]
    )
    read = Read(chart.figure())
    assert [each["class"] for each in read.all("figure")] == ["chart wide", "chart narrow"]
    assert [each["viewbox"] for each in read.all("svg")] == ["0 0 760 360", "0 0 340 332"]
    assert chart.figure().count("<title>&lt;</title>") == 2


@pytest.mark.parametrize("values", [[1], [3, 4], [1e-9, 1e12], [], [0, -1], [1024]])
def test_log_ticks_reach_around(values):
    ticks = log_ticks(values)
    assert 2 <= len(ticks) <= 9
    if good := [value for value in values if value > 0]:
        assert ticks[0] <= min(good)
        assert ticks[-1] >= max(good)


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("gemm", "gemm"),
        ("", ""),
        ("void f()", "f"),
        ("x" * 200, "x" * 79 + "…"),
        ("void at::native::(anonymous namespace)::cat<float>(int)", "native::cat"),
        ("std::enable_if<!T, void>::type internal::gemvx::kernel<int>(int)", "gemvx::kernel"),
        ("a(b (c", "a(b (c"),
        ("()", "()"),
    ],
)
def test_names_are_shortened_to_what_tells_them_apart(name, short):
    assert short_name(name) == short


def test_a_plan_shows_both_steps_on_one_axis_and_folds_alternatives():
    from weft.report.picture import picture_of, stacked
    from weft.report.plan_tables import plan_page

    plan = weft.plan("gpt2", "a100-8")
    text = plan_page(plan, (overlapping(), handshake()))
    assert text.count("data-timeline=") == 1
    assert text.count("<details") == 2  # what ran longest, and the alternatives
    assert "takes" in text
    picture = stacked({"before": picture_of(overlapping()), "planned": picture_of(handshake())})
    assert {line.group for line in picture.lines} == {
        *("before, rank 0", "planned, rank 0", "planned, rank 1")
    }
    assert picture.num_spans == sum(
        picture_of(each).num_spans for each in (overlapping(), handshake())
    )
    assert [picture.names[picture.name[i]] for i in picture.paths[1]] == [
        picture_of(handshake()).names[picture_of(handshake()).name[i]]
        for i in picture_of(handshake()).paths[0]
    ]
