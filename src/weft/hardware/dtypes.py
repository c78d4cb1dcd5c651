"""What a dtype means: which units multiply it, how many bytes an element takes, what is written.

This is the one list of dtypes that kernels, workloads and plans know.
"""

from dataclasses import dataclass

from weft.errors import UnknownNameError, nearest


@dataclass(frozen=True, slots=True)
class QuantizationScheme:
    """How operands of a GEMM are stored and multiplied.

    ``math`` names the units' dtype, ``activation`` and ``weight`` are bytes of one element of the
    operands, scales of block formats included. ``writes`` names the dtype of the result, which is
    not that of the operands where those are narrow: a product of fp8 operands writes bf16.
    ``measured`` names the dtype whose fit is closest in kind, where this one has none.
    ``arrives`` says that activations come in the dtype of the operands: the kernel before wrote
    them so, and the product has nothing to quantize. ``by_device``: libraries have another kernel
    for every device, so coefficients carry over badly, to siblings as well.
    """

    math: str
    activation: float
    weight: float
    writes: str
    measured: str = "bf16"
    arrives: bool = False
    by_device: bool = False

    @property
    def output(self) -> float:
        """Bytes of one element of the result."""
        return item_bytes(self.writes)


SCHEMES = {
    "bf16": QuantizationScheme("bf16", 2, 2, "bf16"),
    "fp16": QuantizationScheme("fp16", 2, 2, "fp16"),
    "tf32": QuantizationScheme("tf32", 4, 4, "tf32"),
    "fp32": QuantizationScheme("fp32", 4, 4, "fp32"),
    "fp64": QuantizationScheme("fp64", 8, 8, "fp64"),
    # Activations come as bf16 and are turned into fp8 before (dynamic: after their maximum is
    # known); static has its scale beforehand, block has a scale for every 128 elements.
    "fp8": QuantizationScheme("fp8", 1, 1, "bf16", "fp8"),
    "fp8_static": QuantizationScheme("fp8", 1, 1, "bf16", "fp8"),
    "fp8_block": QuantizationScheme("fp8", 1, 1, "bf16", "fp8_block", by_device=True),
    # Servers quantize inside the norm or activation before.
    "fp8_fused": QuantizationScheme("fp8", 1, 1, "bf16", "fp8", arrives=True),
    "nvfp4": QuantizationScheme("fp4", 0.5625, 0.5625, "bf16", "nvfp4"),
    "int8": QuantizationScheme("int8", 1, 1, "bf16", "sq"),
    # SmoothQuant: int8 activations and weights.
    "sq": QuantizationScheme("int8", 1, 1, "bf16", "sq"),
    "int8_wo": QuantizationScheme("bf16", 2, 1, "bf16", "int8_wo"),  # weights alone are stored so
    "int4_wo": QuantizationScheme("bf16", 2, 0.5, "bf16", "int4_wo"),
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
    """Return the catalogue's name of a dtype, whatever it is called elsewhere.

    >>> known_dtype("torch.bfloat16"), known_dtype("fp8_block")
    ('bf16', 'fp8_block')
    """
    short = name.lower().removeprefix("torch.")
    found = ALIASES.get(short, short)
    if found not in SCHEMES and found not in _OTHER_BYTES:
        raise UnknownNameError(
            f"no kernel is known for dtype {name!r}", nearest(found, [*SCHEMES, *ALIASES])
        )
    return found


def item_bytes(dtype: str) -> float:
    """Return the bytes of one element in memory, as operands of products are stored."""
    name = known_dtype(dtype)
    return _OTHER_BYTES[name] if name in _OTHER_BYTES else SCHEMES[name].activation


def scheme_of(dtype: str) -> QuantizationScheme:
    """Return the quantization scheme of a dtype; integers, which are only moved, have fp32's."""
    name = known_dtype(dtype)
    if name in SCHEMES:
        return SCHEMES[name]
    size = _OTHER_BYTES[name]
    return QuantizationScheme("fp32", size, size, name)


def output_dtype(dtype: str) -> str:
    """Return the dtype of what a product with operands of ``dtype`` writes.

    It is also that of the tensors between products: norms, activations and collectives of a
    model in fp8 work on bf16.

    >>> output_dtype("fp8"), output_dtype("fp16")
    ('bf16', 'fp16')
    """
    return scheme_of(dtype).writes


def product_bytes(dtype: str, m: int, n: int, k: int, batch: int = 1) -> int:
    """Return the bytes that products read and write: both operands, and the result."""
    scheme = scheme_of(dtype)
    read = scheme.activation * m * k + scheme.weight * k * n
    return round(batch * (read + scheme.output * m * n))
