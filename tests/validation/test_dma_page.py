"""What docs/dma.md shows can be done as it stands there, and its plots are there."""

import re
import shlex
from pathlib import Path

import pytest

from validation.latte_winners import winners
from weft.cli import main

pytestmark = pytest.mark.thorough

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "dma.md").read_text(encoding="utf-8")
COMMANDS = [
    line.split("#")[0].strip()
    for line in PAGE.splitlines()
    if line.startswith("weft ") and not line.startswith("weft validate")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_its_commands_run(capsys, command):
    assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out


def test_its_tables_of_all_to_alls_are_what_the_command_prints():
    assert [table for table in winners().split("\n\n") if table.strip() not in PAGE] == []


def test_every_plot_it_shows_exists():
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE)
    assert len(links) == 12
    for link in links:
        assert (DOCS / link).is_file(), link
