"""Start and bounds of the coefficients of each cost model.

A start is what a datasheet or a published measurement suggests; the bounds are physical: no more
than the rated rate, no fewer rows than one instruction multiplies, no launch under half a
microsecond. Spreads are in e-folds; a spread of zero keeps a number as it is.
"""

from collections.abc import Mapping

from weft.calibration.cost_model_fit import Range

PRODUCTS = {
    "launch": Range(2e-6, 5e-7, 1e-4, 0.7),
    "flops": Range(0.8, 0.05, 1.0, 0.2),
    "memory": Range(0.85, 0.3, 0.95, 0.15),
    "pull": Range(5.0, 0.5, 40.0),
    "start": Range(5e-7, 2e-8, 1e-4),
    "loading": Range(15.0, 0.5, 200.0),
    "narrow": Range(64.0, 16.0, 128.0, 0.7),
    "split": Range(2e-6, 1e-7, 1e-3),
    "split_bytes": Range(0.3, 0.01, 20.0),
    "sharpness": Range(3.0, 1.0, 12.0, 0.5),
    "waves": Range(0.1, 0.01, 1.0, 1.5),
    "step": Range(6e-8, 1e-9, 1e-5),
    "cached": Range(0.5, 0.05, 1.5, 0.7),
    "room": Range(0.5, 0.1, 1.0, 0.5),
    "quantise": Range(0.0, 0.0, 0.0, 0.0),
    "row": Range(0.0, 0.0, 0.0, 0.0),
}
# Activations that come as bf16 and are multiplied as fewer bits pass kernels of their own first.
_QUANTISED = PRODUCTS | {
    "launch": Range(5e-6, 5e-7, 1e-4, 0.7),
    "quantise": Range(5.0, 1e-3, 100.0, 2.0),
    "row": Range(2e-9, 1e-13, 1e-6, 3.0),
}
_SCALED = _QUANTISED | {
    "launch": Range(1.2e-5, 5e-7, 1e-4, 0.7),
    "row": Range(1e-10, 1e-13, 1e-6, 3.0),
}
# NeuSight's times are of calls of PyTorch, whose host takes some tens of microseconds.
_CALL = {
    "launch": Range(2e-6, 2e-6, 2e-6, 0.0),
    "call": Range(4e-5, 1e-5, 1e-4),
    "side": Range(3.0, 1.0, 12.0),
}
_CALLED = PRODUCTS | _CALL
_BY_DTYPE = {
    "fp8": _SCALED,
    "fp8_static": _SCALED,
    "fp8_block": _QUANTISED,
    "nvfp4": _QUANTISED,
    "sq": _QUANTISED,
}


def grid_of(family: str, dtype: str) -> str:
    """Name the grid of a family's correction for a dtype; "" where it has none."""
    if dtype == "bf16" and family in ("norm", "activation", "elementwise"):
        return ""  # the formula alone is as near as the microseconds that the table is rounded to
    return "gemm-fp32" if (family, dtype) == ("gemm", "fp32") else family


def ranges_of(family: str, dtype: str, implementation: str = "") -> Mapping[str, Range]:
    """Return the ranges of a family's coefficients for a dtype, or for a library of several."""
    if implementation:
        return _TRAINED
    if family in ("gemm", "bmm"):
        return _CALLED if dtype == "fp32" else _BY_DTYPE.get(dtype, PRODUCTS)
    if dtype == "fp32" and family in _CALLED_RANGES:
        return _CALLED_RANGES[family]
    return COEFFICIENT_RANGES[family]


_ATTENTION = {
    "launch": Range(1e-5, 1e-6, 1e-4, 0.7),
    "flops": Range(0.6, 0.05, 1.0, 0.3),
    "memory": Range(0.85, 0.3, 0.95, 0.15),
    "block": Range(128.0, 128.0, 128.0, 0.0),
    "start": Range(1e-6, 2e-8, 1e-4),
    "exponent": Range(32.0, 1.0, 1000.0),
    "prepare": Range(2.0, 0.01, 20.0),
    "sharpness": Range(3.0, 1.0, 12.0, 0.5),
}
# Of one library, without what servers do around it.
_TRAINED = _ATTENTION | {
    "launch": Range(3e-6, 1e-6, 5e-5, 0.7),
    "flops": Range(0.6, 0.05, 1.0, 0.5),
    "memory": Range(0.9, 0.9, 0.9, 0.0),
    "prepare": Range(0.5, 0.01, 20.0),
    "masked": Range(0.05, 1e-3, 0.5, 1.5),
}
_DECODE = {
    "launch": Range(2e-6, 2e-6, 2e-6, 0.0),
    "floor": Range(1e4, 1e2, 1e5, 0.7),
    "memory": Range(0.9, 0.3, 0.95, 0.15),
    "pull": Range(2.0, 0.5, 20.0),
    "start": Range(3e3, 10.0, 1e6),
    "head": Range(100.0, 1.0, 1e4, 2.0),
    "parts": Range(3.0, 0.5, 16.0),
    "alone": Range(8.0, 1.0, 64.0, 1.5),
    "slots": Range(1.5, 1.0, 4.0, 0.5),
    "waves": Range(0.1, 0.01, 1.0, 1.5),
    "join": Range(4e3, 10.0, 1e5),
    "narrow": Range(1.0, 0.1, 3.0),
    "sharpness": Range(2.0, 1.0, 12.0, 0.5),
}
_EXPERTS = PRODUCTS | {
    "launch": Range(1e-5, 1e-6, 1e-4, 0.7),
    "sort": Range(1e-5, 1e-6, 1e-3),
    "token": Range(2.0, 0.01, 50.0),
    "crowd": Range(0.3, 0.01, 1.0),
}
_MOVED = {
    "memory": Range(0.85, 0.3, 0.95, 0.15),
    "cached": Range(0.5, 0.05, 1.5, 0.7),
    "room": Range(0.5, 0.1, 1.0, 0.5),
}
_ROWS = _MOVED | {
    # Rows reach what plain copies do once blocks are many: a memory share apart says little.
    "memory": Range(0.91, 0.8, 0.95, 0.02),
    "start": Range(700.0, 10.0, 1e5),
    "step": Range(400.0, 1.0, 1e5),
    "sharing": Range(0.2, 0.01, 1.0),
    "miss": Range(0.5, 0.01, 3.0),
    "waves": Range(0.5, 0.01, 1.0, 1.5),
    "short": Range(32.0, 1.0, 1024.0),
    "sharpness": Range(4.0, 1.0, 12.0, 0.3),
}
# Times of the device alone, launches included.
_DEVICE = {"launch": Range(1.5e-6, 5e-7, 1e-5, 0.7)}
COEFFICIENT_RANGES: dict[str, Mapping[str, Range]] = {
    "attention": _ATTENTION,
    "decode": _DECODE,
    "moe": _EXPERTS,
    "activation": _DEVICE | _ROWS,
    **dict.fromkeys(("softmax", "norm"), _DEVICE | _ROWS),
    "elementwise": _DEVICE | _MOVED,
}
_CALLED_RANGES = {
    "softmax": _CALL | _ROWS,
    "norm": _CALL | _ROWS,
    "elementwise": _CALL | _MOVED,
}
