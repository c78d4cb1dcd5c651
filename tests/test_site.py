"""The site lists every page, and links between texts lead somewhere."""

import re
from pathlib import Path

import pytest

import weft

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
TEXTS = [*PAGES, *ROOT.glob("*.md")]
# Pages that docs/site/hooks.py adds.
MADE = {"index.md", "architecture.md", "contributing.md", "changelog.md", "commands.md"}


def test_the_site_lists_every_page_once():
    listed = re.findall(r": ([a-z0-9/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted({page.relative_to(DOCS).as_posix() for page in PAGES} | MADE)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    links = re.findall(r"\]\((?!https?:|#)([^)#\s]+)[^)]*\)", path.read_text(encoding="utf-8"))
    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_reference_lists_every_public_name():
    listed = re.findall(r"^::: weft\..*?(\w+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert [name for name in weft.__all__ if name not in listed] == []


def test_the_files_that_contributors_are_told_to_touch_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w.-]+/[\w./-]*)`", text)) - {"cli/verbs/NAME_verb.py"}
    folders = (ROOT, ROOT / "src/weft", ROOT / "src/weft/hardware")
    assert len(named) > 50
    assert [each for each in named if not any((at / each).exists() for at in folders)] == []
