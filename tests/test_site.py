"""The site lists every page, and links between texts lead somewhere."""

import re
from pathlib import Path

import pytest

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
