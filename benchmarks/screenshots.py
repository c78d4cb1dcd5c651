"""Makes the screenshots of the docs: ``python -m benchmarks.screenshots docs/plots``."""

import base64
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.browser import Browser

_DRAWN = "[...document.querySelectorAll('.stage')].every((each) => each.dataset.drawn === 'yes')"
_WEFT = (sys.executable, "-m", "weft")
_RANKS = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
_EXAMPLE = Path(__file__).parents[1] / "examples" / "watch_training.py"
# The picture, the page that the command writes, its height.
PICTURES = {
    "plan.png": (
        (*_WEFT, "plan", "llama-8b", "--on", "mi300x-8", "--set", "fsdp=true", "-o", "plan.html"),
        "plan.html",
        1250,
    ),
    "tour.png": ((*_WEFT, "tour", "--again", "-o", "."), "report.html", 745),
    "watch.png": ((*_RANKS, str(_EXAMPLE)), "overlap.html", 1100),
}


def main(folder: str, *names: str) -> None:
    """Run the command of each picture and take it in Chromium."""
    with Browser() as browser, tempfile.TemporaryDirectory() as where:
        for name in names or PICTURES:
            command, page, height = PICTURES[name]
            environment = {**os.environ, "TMPDIR": where}
            subprocess.run(
                command, cwd=where, env=environment, check=True, capture_output=True, timeout=300
            )
            browser.open(Path(where) / page, width=1000, height=height)
            browser.until(_DRAWN)
            taken = browser.ask("Page.captureScreenshot", format="png")["data"]
            (Path(folder) / name).write_bytes(base64.b64decode(taken))


if __name__ == "__main__":
    main(*sys.argv[1:])
