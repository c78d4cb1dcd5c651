"""One cell of a sweep: a verb asked with ``--json``, its rows or its error."""

import contextlib
import io
import json
import threading
from typing import Any

# What a verb prints is caught for the whole process; threads of a cluster's worker take turns.
_TURN = threading.Lock()


def ask(words: tuple[str, ...]) -> tuple[list[dict[str, Any]], str]:
    """Answer one command and give its rows, and what was wrong if something was."""
    from weft.cli import main

    out, err = io.StringIO(), io.StringIO()
    try:
        with _TURN, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main([*words, "--json"])
    except Exception as error:  # noqa: BLE001 - a fault of weft costs its cell, not the sweep
        return [], f"{type(error).__name__}: {error}"
    if code == 2 or not out.getvalue():
        return [], _one_line(err.getvalue()) or f"ended with exit code {code}"
    found = json.loads(out.getvalue())
    wrong = _one_line(err.getvalue()) if code else ""
    # What a verb says of all its rows together, as a plan its totals, is a number beside them.
    whole = {key: value for key, value in found.items() if isinstance(value, (int, float))}
    return [whole | _flat(row) for row in found["results"]], wrong


def _one_line(text: str) -> str:
    return " ".join(text.split()).removeprefix("weft: ")


def _flat(row: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Make columns of what is nested by names; lists do not fit into a table.

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
