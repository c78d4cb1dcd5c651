"""How long the command line takes to start and to price one collective."""

import subprocess
import sys
from collections.abc import Iterable, Sequence
from functools import partial

from benchmarks.harness import measure
from benchmarks.rows import Options, Row
from weft.errors import RunError

QUESTION = "How long does `weft collective` take from start to end, and is torch left alone?"
LIMIT_SECONDS = 0.5

_COMMANDS = (
    ("collective", "all_reduce", "--size", "1MiB", "--on", "mi300x-8"),
    ("platforms",),
    ("--help",),
)
_START = "import sys; from weft.cli import main; sys.exit(main(sys.argv[1:]))"


def run(options: Options) -> Iterable[Row]:
    """Start each command as often as there are rounds."""
    for arguments in _COMMANDS:
        yield measure(
            "startup",
            {"command": f"weft {' '.join(arguments)}"},
            partial(_only_start, arguments),
            rounds=options.rounds,
            limit=LIMIT_SECONDS,
            torch_imported=imports_torch(arguments),
        )


def imports_torch(arguments: Sequence[str]) -> bool:
    """Return whether a command loads torch, from Python's own list of imports."""
    return any(line.split("|")[-1].strip() == "torch" for line in _start(arguments, "importtime"))


def _only_start(arguments: Sequence[str]) -> None:
    _start(arguments)


def _start(arguments: Sequence[str], *flags: str) -> list[str]:
    extra = [word for flag in flags for word in ("-X", flag)]
    done = subprocess.run(
        [sys.executable, *extra, "-c", _START, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RunError(f"weft {' '.join(arguments)} ended with {done.returncode}: {done.stderr}")
    return done.stderr.splitlines()
