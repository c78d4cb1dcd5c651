"""How often the workgroups of a kernel fill the device they run on.

A unit holds as many workgroups as its threads, registers and scratch memory allow. Those beyond
what all units hold wait, and kernels of other streams wait behind them.
"""

from __future__ import annotations

from math import ceil, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.trace import Kind

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.trace import Trace

    Floats = NDArray[np.float64]

# Of a unit, where the file does not say: the same on every GPU that runs PyTorch today.
_THREADS, _REGISTERS, _SCRATCH, _MOST = 2048, 65536, 98304, 32
_RESERVED = 1024  # bytes of scratch memory that CUDA keeps of each workgroup


def waves(trace: Trace) -> Floats:
    """Give for each row of a trace how many times its workgroups fill the device."""
    columns = trace.columns
    out = np.zeros(len(trace))
    kernels = np.flatnonzero((columns.kind == Kind.KERNEL) & (columns.detail >= 0))
    detail, first, which = np.unique(
        columns.detail[kernels], return_index=True, return_inverse=True
    )
    limits = _limits(trace)
    each = [_waves(trace.detail_of(int(kernels[i])), limits) for i in first[: len(detail)]]
    out[kernels] = np.array(each or [0.0])[which.reshape(-1)] if len(kernels) else 0.0
    return out


def _limits(trace: Trace) -> dict[str, int]:
    found = trace.about.get("deviceProperties")
    first: object = found[0] if isinstance(found, list) and found else {}
    about: dict[str, Any] = first if isinstance(first, dict) else {}
    return {
        "units": trace.num_units or 0,
        "warp": _whole(about.get("warpSize")) or 32,
        "threads": _whole(about.get("maxThreadsPerMultiprocessor")) or _THREADS,
        "registers": _whole(about.get("regsPerMultiprocessor")) or _REGISTERS,
        "scratch": _whole(about.get("sharedMemPerMultiprocessor"))
        or _whole(about.get("maxSharedMemoryPerMultiProcessor"))
        or _SCRATCH,
    }


def _waves(detail: dict[str, Any], limits: dict[str, int]) -> float:
    grid, block = _size(detail.get("grid")), _size(detail.get("block"))
    if not grid or not block or not limits["units"]:
        return 0.0
    threads = ceil(block / limits["warp"]) * limits["warp"]
    fits = [limits["threads"] // threads, _MOST]
    if registers := _whole(detail.get("registers per thread")):
        fits.append(limits["registers"] // (ceil(registers / 8) * 8 * threads))
    if scratch := _whole(detail.get("shared memory")):
        fits.append(limits["scratch"] // (scratch + _RESERVED))
    return grid / (max(1, min(fits)) * limits["units"])


def _size(value: object) -> int:
    """Give the product of a grid or block, 0 if it is none.

    >>> _size([32, 1, 2]), _size(None), _size(["x"])
    (64, 0, 0)
    """
    if not isinstance(value, list) or not all(isinstance(each, int) for each in value):
        return 0
    return prod(value) if value else 0


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and value > 0 else None
