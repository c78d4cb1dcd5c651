"""Results for programs: one JSON object, or a CSV table."""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np


def results_json(
    verb: str, platform: str | None, results: Sequence[Mapping[str, Any]], **more: Any
) -> str:
    """Return the results of a verb as JSON; NaN and infinity become null."""
    whole = {"weft": weft_version(), "verb": verb, "platform": platform, **more}
    return json.dumps(plain({**whole, "results": results}), indent=1, allow_nan=False)


def results_csv(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the results as CSV: one line per result, with the keys of all of them."""
    keys = list(dict.fromkeys(key for row in results for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: v for k, v in plain(row).items() if v is not None} for row in results)
    return text.getvalue()


def weft_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("weft")
    except PackageNotFoundError:  # run from a source tree
        return "unknown"


def plain(value: Any) -> Any:
    """Convert numpy numbers and arrays to JSON values."""
    match value:
        case bool() | str() | None:
            return value
        case np.ndarray() | np.generic():
            return plain(value.tolist())
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(key): plain(inner) for key, inner in value.items()}
        case list() | tuple():
            return [plain(inner) for inner in value]
        case _:
            return value
