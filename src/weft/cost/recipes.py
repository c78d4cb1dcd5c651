"""What a dtype means for a kernel: which units multiply, and how many bytes an element takes."""

from dataclasses import dataclass

from weft.errors import UnknownNameError, nearest
from weft.hardware import Device, Flops


@dataclass(frozen=True, slots=True)
class Recipe:
    """How operands of a GEMM are stored and multiplied.

    ``math`` names the units' dtype, ``activation``, ``weight`` and ``output`` are bytes of one
    element, scales of block formats included. ``measured`` names the dtype whose fit is closest
    in kind, where this one has none.
    """

    math: str
    activation: float
    weight: float
    output: float
    measured: str = "bf16"


RECIPES = {
    "bf16": Recipe("bf16", 2, 2, 2),
    "fp16": Recipe("fp16", 2, 2, 2),
    "tf32": Recipe("tf32", 4, 4, 4),
    "fp32": Recipe("fp32", 4, 4, 4),
    "fp64": Recipe("fp64", 8, 8, 8),
    # Activations come as bf16 and are turned into fp8 before (dynamic: after their maximum is
    # known); static has its scale beforehand, block has a scale for every 128 elements.
    "fp8": Recipe("fp8", 1, 1, 2, "fp8"),
    "fp8_static": Recipe("fp8", 1, 1, 2, "fp8"),
    "fp8_block": Recipe("fp8", 1, 1, 2, "fp8_block"),
    "nvfp4": Recipe("fp4", 0.5625, 0.5625, 2, "nvfp4"),
    "int8": Recipe("int8", 1, 1, 2, "sq"),
    "sq": Recipe("int8", 1, 1, 2, "sq"),  # SmoothQuant: int8 activations and weights
    "int8_wo": Recipe("bf16", 2, 1, 2, "int8_wo"),  # weights alone are stored so
    "int4_wo": Recipe("bf16", 2, 0.5, 2, "int4_wo"),
}

ALIASES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float64": "fp64",
    "double": "fp64",
    "float8": "fp8",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "float8_e4m3fnuz": "fp8",
    "float8_e5m2fnuz": "fp8",
    "fp4": "nvfp4",
}
# Integers and truth values are moved, not multiplied.
_OTHER_BYTES = {
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex32": 4,
    "complex64": 8,
    "complex128": 16,
}


def known_dtype(name: str) -> str:
    """Give the catalogue's name of a dtype, whatever it is called elsewhere.

    >>> known_dtype("torch.bfloat16"), known_dtype("fp8_block")
    ('bf16', 'fp8_block')
    """
    short = name.lower().removeprefix("torch.")
    found = ALIASES.get(short, short)
    if found not in RECIPES and found not in _OTHER_BYTES:
        raise UnknownNameError(
            f"no kernel is known for dtype {name!r}", nearest(found, [*RECIPES, *ALIASES])
        )
    return found


def item_bytes(dtype: str) -> float:
    """Give the bytes of one element in memory."""
    name = known_dtype(dtype)
    return _OTHER_BYTES[name] if name in _OTHER_BYTES else RECIPES[name].activation


def recipe_of(dtype: str) -> Recipe:
    """Give the recipe of a dtype; integers that are only moved have the units of fp32."""
    name = known_dtype(dtype)
    if name in RECIPES:
        return RECIPES[name]
    size = _OTHER_BYTES[name]
    return Recipe("fp32", size, size, size)


def rated_flops(device: Device, math: str) -> float:
    """Give the rated flop/s of a device's units for a dtype."""
    return flops_of(device, math).rated


def achieved_share(device: Device, math: str) -> float:
    """Give the share of the rated flop/s that software was seen to achieve."""
    flops = flops_of(device, math)
    return flops.achieved / flops.rated


_WIDER = ("fp4", "fp8", "int8", "bf16", "fp16", "tf32", "fp32", "fp64")


def flops_of(device: Device, dtype: str) -> Flops:
    """Find the units that multiply a dtype.

    Where there are none the next that hold it serve: bf16 those of fp16 or fp32, fp8 those of
    bf16 and so on, as libraries do.
    """
    math = RECIPES[dtype].math if dtype in RECIPES else dtype
    for name in _WIDER[_WIDER.index(math) :] if math in _WIDER else (math,):
        if name in device.flops:
            return device.flops[name]
    raise UnknownNameError(
        f"{device.name} has no flop rate for dtype {dtype!r}", nearest(dtype, device.flops)
    )
