"""Plots of broadcasts: what was measured stands in them, and what is predicted."""

import json

from benchmarks.broadcast_plots import CODECS, by_rate, by_size, main, measured

SIZE = 16 << 20


def row(codec, median, **more):
    case = {"algorithm": "chain", "codec": codec, "data": "weights", "dtype": "float32"}
    case |= {"nbytes": SIZE, "rate": "1gbit", **more}
    return {"case": case, "median": median}


def test_the_last_measurement_of_a_codec_counts_and_other_cases_do_not():
    rows = [row("none", 0.2), row("none", 0.14), row("int8", 0.04)]
    others = [row("pack", 1.0, data="zeros"), row("int8", 9.0, keep_root=True)]
    others += [row("bf16", 1.0, rate="10gbit"), row("pack", 2.0, algorithm="p2p")]
    assert measured("1gbit", rows + others) == {("none", SIZE): 0.14, ("int8", SIZE): 0.04}


def test_lines_pass_near_the_chain_that_calibrates_them():
    chart = by_size("1gbit", [row("none", 0.15)])
    drawn = [(each, dict(zip(each.xs, each.ys, strict=True))) for each in chart.series]
    lines = {each.name: points for each, points in drawn if each.style == "line"}
    dots = {each.name: points for each, points in drawn if each.style == "dots"}
    assert abs(lines["none"][SIZE] / 150 - 1) < 0.05
    assert dots["none"] == {SIZE: 150.0}
    assert lines["int8"][SIZE] < lines["bf16"][SIZE] < lines["pack"][SIZE] < lines["none"][SIZE]


def test_a_codec_loses_where_links_are_faster_than_it():
    lines = {series.name: list(series.ys) for series in by_rate().series}
    assert set(lines) == set(CODECS)
    assert lines["pack"][0] < lines["none"][0]
    assert lines["pack"][-1] > lines["none"][-1]


def test_every_chart_is_written(tmp_path):
    results = tmp_path / "results.jsonl"
    results.write_text(json.dumps(row("none", 0.15)) + "\n", encoding="utf-8")
    main(str(results), str(tmp_path))
    names = {path.stem for path in tmp_path.glob("*.svg")}
    assert names == {"broadcast-1gbit", "broadcast-10gbit", "broadcast-rates"}
