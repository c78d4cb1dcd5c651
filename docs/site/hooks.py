"""Hooks of mkdocs: pages whose text has its home outside docs/, and links that lead there.

The README is the first page; ARCHITECTURE.md, CONTRIBUTING.md and CHANGELOG.md are pages; results
of benchmarks are files of the site; the page of the command line is what ``--help`` prints.
"""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
TEXTS = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and files that live elsewhere."""
    for source, page in TEXTS.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=linked(text)))
    files.append(File.generated(config, "commands.md", content=commands()))
    for path in sorted((ROOT / "benchmarks/results").glob("*.jsonl")):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Redirect links out of docs/ to the same text in the site."""
    up = "../" * page.file.src_uri.count("/")  # from the folder of the page to docs/
    return re.sub(
        rf"\]\({re.escape(up)}\.\./([^)]*)\)", lambda link: f"]({up}{_home(link[1])})", markdown
    )


def linked(text: str) -> str:
    """Redirect the links of a text at the root to the same text in the site."""
    return re.sub(r"\]\((?!https?:|#)([^)]*)\)", lambda found: f"]({_home(found[1])})", text)


def _home(link: str) -> str:
    path, mark, anchor = link.partition("#")
    path = TEXTS.get(path, path.removeprefix("docs/").replace("benchmarks/results/", "results/"))
    return path + mark + anchor


def commands() -> str:
    """Write down what ``--help`` says of every verb."""
    parts = ["# The command line\n", "What `--help` prints, verb by verb.\n", _block()]
    verbs = re.findall(r"^  ([a-z0-9]+) {2,}\S", _help().split("Commands:")[1], flags=re.MULTILINE)
    for verb in verbs:
        parts += [f"## weft {verb}\n", _block(verb)]
    return "\n".join(parts)


def _block(*verb: str) -> str:
    return f"```text\n{_help(*verb).strip()}\n```\n"


def _help(*verb: str) -> str:
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100", "TERM": "dumb"}
    command = [sys.executable, "-m", "weft", *verb, "--help"]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return done.stdout
