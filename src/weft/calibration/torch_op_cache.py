"""A cache of measured ops, so that steps with the same ops need no new measurement."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import torch

from weft.calibration.torch_op_times import OpTime, time_ops
from weft.hardware.files import here_path

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from weft.calibration.torch_op_calls import OpCall


def ops_path() -> Path:
    """Return the file of the times of single ops, next to the calibration."""
    return here_path().with_name("here-ops.json")


def stored_times(calls: Sequence[OpCall]) -> dict[OpCall, OpTime]:
    """Return the times of all calls; unknown ones are measured and cached.

    A new calibration of the machine makes what was kept before it worthless.
    """
    kept = _read()
    keys = {call: _key(call) for call in calls}
    missing = [call for call, key in keys.items() if key not in kept]
    if missing:
        kept |= {
            keys[call]: list(found) for call, found in zip(missing, time_ops(missing), strict=True)
        }
        _write(kept)
    return {call: OpTime(*kept[key]) for call, key in keys.items()}


def _key(call: OpCall) -> str:
    return hashlib.blake2b(repr(call).encode(), digest_size=12).hexdigest()


def _read() -> dict[str, list[float]]:
    path, calibration = ops_path(), here_path()
    try:
        if calibration.exists() and calibration.stat().st_mtime > path.stat().st_mtime:
            return {}
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    if found.get("torch") != torch.__version__:
        return {}
    times: dict[str, list[float]] = found["times"]
    return times


def _write(kept: dict[str, list[float]]) -> None:
    path = ops_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps({"torch": torch.__version__, "times": kept}), encoding="utf-8")
    part.replace(path)
