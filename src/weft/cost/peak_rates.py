"""Rates of a device's units for a dtype."""

from weft.errors import UnknownNameError, nearest
from weft.hardware import Device, Flops
from weft.hardware.dtypes import SCHEMES


def rated_flops(device: Device, math: str) -> float:
    """Return the rated flop/s of a device's units for a dtype."""
    return flops_of(device, math).rated


def achieved_share(device: Device, math: str) -> float:
    """Return the share of the rated flop/s that software was seen to achieve."""
    flops = flops_of(device, math)
    return flops.achieved / flops.rated


_WIDER = ("fp4", "fp8", "bf16", "fp16", "tf32", "fp32", "fp64")
_INTEGERS = ("int8", *_WIDER[_WIDER.index("bf16") :])  # which floats do not fit into


def flops_of(device: Device, dtype: str) -> Flops:
    """Find the units that multiply a dtype.

    Where there are none the next that hold it serve: bf16 those of fp16 or fp32, fp8 those of
    bf16 and so on, as libraries do.
    """
    math = SCHEMES[dtype].math if dtype in SCHEMES else dtype
    known = _WIDER if math in _WIDER else _INTEGERS
    for name in known[known.index(math) :] if math in known else (math,):
        if name in device.flops:
            return device.flops[name]
    raise UnknownNameError(
        f"{device.name} has no flop rate for dtype {dtype!r}", nearest(dtype, device.flops)
    )
