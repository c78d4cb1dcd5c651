import io
import re

import pytest

from tests.spans import called, handshake, overlapping, submitted
from weft.report.gantt import print_gantt
from weft.report.text import Column, Page, bar, page, print_table

COLUMNS = [
    Column("name", "name", right=False),
    Column("seconds", "time", "{:.1f} s".format),
]


def printed(draw, *arguments, width=None, **options):
    text = io.StringIO()
    draw(*arguments, to=page(text, width=width), **options)
    return text.getvalue()


def test_a_table_is_aligned_under_its_titles():
    rows = [{"name": "ring", "seconds": 1.25}, {"name": "direct", "seconds": 10}]
    assert printed(print_table, COLUMNS, rows, title="all_reduce") == (
        "all_reduce\n"
        "name      time\n"
        "ring     1.2 s\n"
        "direct  10.0 s\n"
    )  # fmt: skip


def test_a_key_that_a_row_lacks_is_blank():
    assert printed(print_table, COLUMNS, [{"name": "ring"}]) == "name  time\nring\n"


def test_square_brackets_are_no_markup():
    assert "[bold]x[/bold]" in printed(print_table, COLUMNS, [{"name": "[bold]x[/bold]"}])


def test_a_pipe_gets_no_colours_and_whole_lines():
    text = printed(print_table, COLUMNS, [{"name": "x" * 300, "seconds": 1}])
    assert "\x1b" not in text
    assert "x" * 300 in text


def test_a_terminal_gets_colours_and_wrapped_lines():
    text = io.StringIO()
    columns = [Column("name", "name", right=False, style="cyan"), Column("why", "", right=False)]
    rows = [{"name": "ring", "why": "the quick brown fox jumps"}]
    print_table(columns, rows, to=Page(text, 24, colours=True))
    assert text.getvalue() == (
        "\x1b[1mname\x1b[0m\n"
        "\x1b[36mring\x1b[0m  the quick brown\n"
        "      fox jumps\n"
    )  # fmt: skip


def test_a_narrow_window_omits_spare_columns_and_wraps_text():
    columns = [
        Column("name", "name", right=False),
        Column("seconds", "time", "{:.1f} s".format),
        Column("bytes", "bytes moved", spare=True),
        Column("why", "why", right=False),
    ]
    row = {
        "name": "a long name of a collective",
        "seconds": 1.0,
        "bytes": 12345678,
        "why": "x " * 9,
    }
    for width in (40, 60, 200):
        lines = printed(print_table, columns, [row], width=width).splitlines()
        assert all(len(line) <= width for line in lines)
        assert ("12345678" in "".join(lines)) == (width > 40)
    assert len(lines) == 2  # a wide window wraps nothing


def test_no_title_is_no_header():
    assert printed(print_table, [Column("name", "")], [{"name": "ring"}]) == "ring\n"


def test_a_table_without_rows_is_its_header():
    assert printed(print_table, COLUMNS, []) == "name  time\n"
    bars = [*COLUMNS, Column("bar", "", right=False)]
    assert printed(print_table, bars, []) == "name  time\n"


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(0, "    "), (-1, "    "), (1, "████"), (2, "████"), (0.25, "█   "), (0.3, "█▎  ")],
)
def test_a_bar_is_as_long_as_its_share(share, drawn):
    assert bar(share, 4) == drawn


def test_a_timeline_is_drawn_queue_by_queue():
    assert printed(print_gantt, overlapping(), width=36) == (
        "          0 s             9 s\n"
        "stream0@0 █████████             44 %\n"
        "copy0@0         ▓▓▓▓▓▓▓   ▓▓▓   44 %\n"
        "          █ computation   ▓ communication   ░ waiting\n"
    )


def lines_of(timeline, **options):
    return printed(print_gantt, timeline, width=48, **options).splitlines()


def test_what_waits_is_drawn_lighter_than_what_works():
    axis, first, second, legend = lines_of(handshake())
    assert axis.split() == ["0", "s", "7", "s"]
    assert first.startswith("stream0@0 ░░░░▓▓▓▓")
    assert first.count("█") > second.count("█") > 0
    assert first.endswith("43 %")
    assert legend.split() == ["█", "computation", "▓", "communication", "░", "waiting"]


def test_queues_stand_in_the_order_of_people():
    assert [line.split("@")[0] for line in lines_of(called())[1:3]] == ["stream0", "copy0"]


def test_what_was_prelaunched_is_drawn_before_zero():
    assert lines_of(submitted(hold=True))[0].split() == ["-5", "s", "1", "s"]


def test_many_queues_are_cut_and_counted():
    assert lines_of(handshake(), max_lines=1)[2] == "and 1 queues more"


@pytest.mark.parametrize("width", [30, 48, 100])
def test_no_line_of_a_queue_is_wider_than_the_page(width):
    lines = printed(print_gantt, handshake(), width=width).splitlines()
    assert max(len(line) for line in lines[:-1]) <= width


def test_names_cannot_steer_a_terminal():
    """Only the codes of a page itself reach it, also where they stand in a name."""
    evil = "gemm\x1b[2J\x1b]0;title\x07\x9b31m\u202egpj"
    out = io.StringIO()
    place = Page(out, 200, colours=True)
    place.write(place.paint(evil, "bold"))
    place.write_wrapped(evil)
    print_table([Column("name", "name", style="green")], [{"name": evil}], to=place)
    shown = re.sub(r"\x1b\[(0|1|32)m", "", out.getvalue())
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", shown)
    assert shown.count(r"gemm\x1b[2J\x1b]0;title\x07\x9b31m\u202egpj") == 3
    plain = io.StringIO()
    Page(plain, 200).write("a\x1b[1mb")
    assert plain.getvalue() == "a\\x1b[1mb\n"
