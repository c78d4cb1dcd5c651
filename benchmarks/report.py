"""How large reports of traces are, and how soon a browser shows them."""

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.browser import Browser
from benchmarks.machine import data_folder
from benchmarks.rows import Options, Row
from weft.report.analysis_page import page
from weft.trace import analyze

QUESTION = "How soon does a browser show the report of a trace, and how large is it?"
LIMIT_SECONDS, LIMIT_BYTES = 1.0, 3_000_000
_TRACES = {
    "DLRM, 8 ranks": ("param_dlrm_8xV100/kineto", "*.json.gz"),
    "recsys, 109,000 events": ("hta_traces", "recsys_8xA100_rank3.json.gz"),
    "DDP, 216,000 events": ("hta_traces", "ddp_2xV100_rank1.json.gz"),
}
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? 0"
_DRAWN = "performance.getEntriesByName('timeline')[0]?.startTime ?? 0"
_REDRAW = """(() => {
  const { drawing } = document.querySelector("[data-timeline]").control;
  const begin = performance.now();
  for (let i = 0; i < 20; i++) drawing.draw();
  return (performance.now() - begin) / 20;
})()"""


def run(options: Options) -> Iterable[Row]:
    """Open the report of each trace as often as there are rounds."""
    with tempfile.TemporaryDirectory() as folder, Browser() as browser:
        for name, files in _files().items():
            path = Path(folder) / "report.html"
            path.write_text(page(analyze(files)), encoding="utf-8")
            yield _opened(browser, name, path, options.rounds)


def count_rows(_: Options) -> int:
    """Return how many traces there are."""
    return len(_TRACES)


def _files() -> dict[str, list[Path]]:
    """Find the traces of the measured data."""
    folder = data_folder("hta_traces")
    return {name: sorted((folder / at).glob(what)) for name, (at, what) in _TRACES.items()}


def _opened(browser: Browser, name: str, path: Path, rounds: int) -> Row:
    """Measure from the start of loading to the first paint, in the browser's own clock."""
    paints, drawn, redraw = zip(*_rounds(browser, path, rounds), strict=True)
    return Row(
        "report",
        {"trace": name},
        tuple(paints),
        more={
            "limit": LIMIT_SECONDS,
            "nbytes": path.stat().st_size,
            "limit_bytes": LIMIT_BYTES,
            "timeline_drawn": sorted(drawn)[rounds // 2],
            "redraw": sorted(redraw)[rounds // 2],
            "complaints": len(browser.complaints),
        },
    )


def _rounds(browser: Browser, path: Path, rounds: int) -> Iterator[tuple[float, float, float]]:
    for _ in range(rounds):
        browser.open(path)
        browser.until(f"({_PAINT}) > 0 && ({_DRAWN}) > 0")
        yield tuple(browser.evaluate(f"[{_PAINT}, {_DRAWN}, {_REDRAW}].map((ms) => ms / 1000)"))
