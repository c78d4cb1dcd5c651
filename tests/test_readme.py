"""What the README shows can be done as it stands there."""

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)
LINES = [line for language, block in BLOCKS if not language for line in block.splitlines()]


def _sentence(number: int) -> str:
    """Return the line with this number, joined with the indented lines that continue it."""
    rest = itertools.takewhile(lambda line: line.startswith("  "), LINES[number + 1 :])
    return " ".join([LINES[number], *map(str.strip, rest)])


# Commands with the sentence that stands below them; those that read traces have no files here.
COMMANDS = [
    (line.removeprefix("$ ").split("#")[0].strip(), _sentence(number + 1))
    for number, line in enumerate(LINES)
    if line.startswith("$ weft ") and "json" not in line
]


@pytest.mark.multiprocess
def test_the_example_runs(tmp_path):
    (code,) = [block for language, block in BLOCKS if language == "python"]
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "example.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seconds, low, high, exposed = map(float, done.stdout.split())
    assert 0 <= exposed < low <= seconds <= high


@pytest.mark.multiprocess
@pytest.mark.parametrize(("command", "answer"), COMMANDS)
def test_the_commands_print_what_the_readme_shows(tmp_path, command, answer):
    start = "import sys; from weft.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", start, *shlex.split(command)[1:]]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == answer


def test_every_file_it_links_to_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    for link in links:
        assert (Path(__file__).parents[1] / link).exists(), link
