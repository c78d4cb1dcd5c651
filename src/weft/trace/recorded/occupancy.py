"""How often the workgroups of a kernel fill the device they run on.

A unit holds as many workgroups as its threads, registers and scratch memory allow. Those beyond
what all units hold wait, and kernels of other streams wait behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.trace import EventKind, Trace
from weft.trace.trace import whole_number

Floats = NDArray[np.float64]

# Of a unit, where the file does not say: the same on every GPU that runs PyTorch today.
_THREADS, _REGISTERS, _SCRATCH, _MOST = 2048, 65536, 98304, 32
_RESERVED = 1024  # bytes of scratch memory that CUDA keeps of each workgroup


@dataclass(frozen=True, slots=True)
class _Unit:
    """What workgroups share in a unit, of which the device has ``count``."""

    count: int
    warp: int
    threads: int
    registers: int
    scratch: int

    @classmethod
    def of(cls, trace: Trace) -> _Unit:
        """Read what the file says of its device."""
        found = trace.about.get("deviceProperties")
        first: object = found[0] if isinstance(found, list) and found else {}
        about: dict[str, Any] = first if isinstance(first, dict) else {}

        def said(*keys: str) -> int:
            return next((n for key in keys if (n := whole_number(about.get(key)))), 0)

        return cls(
            count=trace.num_units or 0,
            warp=said("warpSize") or 32,
            threads=said("maxThreadsPerMultiprocessor") or _THREADS,
            registers=said("regsPerMultiprocessor") or _REGISTERS,
            scratch=said("sharedMemPerMultiprocessor", "maxSharedMemoryPerMultiProcessor")
            or _SCRATCH,
        )


def waves(trace: Trace) -> Floats:
    """Return for each row of a trace how many times its workgroups fill the device."""
    columns = trace.columns
    out = np.zeros(len(trace))
    kernels = np.flatnonzero((columns.kind == EventKind.KERNEL) & (columns.detail >= 0))
    if not len(kernels):
        return out
    _, first, which = np.unique(columns.detail[kernels], return_index=True, return_inverse=True)
    unit = _Unit.of(trace)
    each = [_waves(trace.detail_of(row), unit) for row in kernels[first].tolist()]
    out[kernels] = np.array(each)[which.reshape(-1)]
    return out


def _waves(detail: dict[str, Any], unit: _Unit) -> float:
    grid, block = _size(detail.get("grid")), _size(detail.get("block"))
    if not grid or not block or not unit.count:
        return 0.0
    threads = ceil(block / unit.warp) * unit.warp
    fits = [unit.threads // threads, _MOST]
    if registers := whole_number(detail.get("registers per thread")):
        fits.append(unit.registers // (ceil(registers / 8) * 8 * threads))
    if scratch := whole_number(detail.get("shared memory")):
        fits.append(unit.scratch // (scratch + _RESERVED))
    return grid / (max(1, min(fits)) * unit.count)


def _size(value: object) -> int:
    """Return the product of a grid or block, 0 if it is none.

    >>> _size([32, 1, 2]), _size(None), _size(["x"]), _size([-5, -1]), _size([10**99])
    (64, 0, 0, 0, 0)
    """
    sides = [whole_number(each) for each in value] if isinstance(value, list) else []
    known = [side for side in sides if side is not None]
    return whole_number(prod(known)) or 0 if known and len(known) == len(sides) else 0
