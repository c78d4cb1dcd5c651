"""One cell of a sweep: a verb run with ``--json``, its rows or its error."""

import contextlib
import io
import json
import threading
from typing import Any

# stdout is captured for the whole process, so threads of a cluster worker take turns.
_TURN = threading.Lock()


def ask(words: tuple[str, ...]) -> tuple[list[dict[str, Any]], str]:
    """Run one command and return its rows, and its error if it failed."""
    from weft.cli import main

    out, err = io.StringIO(), io.StringIO()
    try:
        with _TURN, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words, "--json"])
    except Exception as error:  # noqa: BLE001 - a bug of weft costs its cell, not the sweep
        return [], f"{type(error).__name__}: {error}"
    if code == 2 or not out.getvalue():
        return [], _one_line(err.getvalue()) or f"ended with exit code {code}"
    found = json.loads(out.getvalue())
    wrong = _one_line(err.getvalue()) if code else ""
    # Totals that a verb reports besides its rows, such as those of a plan, are added to each row.
    whole = {key: value for key, value in found.items() if isinstance(value, (int, float))}
    return [whole | _flat(row) for row in found["results"]], wrong


def _one_line(text: str) -> str:
    return " ".join(text.split()).removeprefix("weft: ")


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to dotted columns; lists are dropped.

    >>> _flat({"seconds": 1.0, "breakdown": {"compute": 0.5}, "critical_path": []})
    {'seconds': 1.0, 'breakdown.compute': 0.5}
    """
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")
        elif not isinstance(value, list):
            found[prefix + key] = value
    return found
