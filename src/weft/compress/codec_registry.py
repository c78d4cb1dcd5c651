"""The codec protocol, the codecs of the native core, and the table of codecs by name."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from weft._core import Codec as CoreCodec
from weft.compress.blosc import Blosc
from weft.compress.frame import Octets, check_float_dtype, check_frame_status
from weft.compress.zfp import Zfp
from weft.errors import UnknownNameError, UsageError, nearest


class Native:
    """A codec of the native core, which runs without the GIL."""

    def __init__(self, name: str, dtype: str) -> None:
        if name != "none":
            check_float_dtype(name, dtype)
        try:
            self.core = CoreCodec(name, dtype)
        except ValueError as error:
            raise UsageError(f"{error}.", "For example: pack, int8:256, int4:64.") from error
        self.dtype = dtype
        kind = name.partition(":")[0]
        self.name = f"{kind}:{self.core.parameter}" if self.core.parameter else kind
        self.room = self.core.room

    def encode(self, chunk: Octets, out: Octets) -> int:
        """Write the frame of ``chunk`` to the front of ``out``, and return its length."""
        return self.core.encode(chunk, out)

    def decode(self, frame: Octets, chunk: Octets) -> None:
        """Decode a frame into ``chunk``."""
        check_frame_status(self.core.decode(frame, chunk), self.name)


class Codec(Protocol):
    """Encodes a chunk as a frame and decodes it. ``name`` and ``dtype`` identify a codec.

    A frame names its codec and carries a checksum. A chunk that does not shrink is stored
    unchanged: a frame is at most 32 bytes longer than its chunk.
    """

    @property
    def name(self) -> str:
        """The name with its parameter, such as ``int8:256``."""

    @property
    def dtype(self) -> str:
        """The dtype of the values in a chunk."""

    def room(self, nbytes: int) -> int:
        """Return the bytes that ``encode`` may need for a chunk of ``nbytes``."""

    def encode(self, chunk: Octets, out: Octets) -> int:
        """Write the frame of ``chunk`` to the front of ``out``, and return its length."""

    def decode(self, frame: Octets, chunk: Octets) -> None:
        """Decode a frame into ``chunk``; an invalid frame raises and leaves ``chunk`` unchanged."""


class CodecKind(NamedTuple):
    """A line of the table of codecs.

    A codec of a fixed size spends ``bits`` on each value. What others reach on weights is in
    ``ratios``, by name and dtype; one that is missing there is expected to save nothing.
    ``error`` is the relative L2 error on weights; plans leave a codec without one out.
    """

    build: Callable[[str, str], Codec]  # from a name with its parameter, and a dtype
    is_lossless: bool = False
    bits: Callable[[str], float] | None = None  # of the parameter
    ratios: Mapping[tuple[str, str], float] = {}
    error: float | None = None


def _block_bits(width: int) -> Callable[[str], float]:
    return lambda block: width + 32 / int(block)  # plus a four-byte scale per block


# Ratios and errors are those on the weights of a small trained transformer: published for blosc2,
# measured by `weft bench codecs` for the others.
CODECS = {
    "none": CodecKind(Native, is_lossless=True),
    "pack": CodecKind(
        Native,
        is_lossless=True,
        ratios={("pack", "float32"): 1.16, ("pack", "bfloat16"): 1.38, ("pack", "float16"): 1.12},
        error=0.0,
    ),
    "bf16": CodecKind(Native, bits=lambda _: 16.0, error=1.7e-3),
    "fp16": CodecKind(Native, bits=lambda _: 16.0, error=2e-4),
    "fp8": CodecKind(Native, bits=lambda _: 8.0, error=0.04),
    "int8": CodecKind(Native, bits=_block_bits(8), error=7e-3),
    "int4": CodecKind(Native, bits=_block_bits(4), error=0.1),
    "zfp": CodecKind(Zfp, bits=float),
    "blosc2": CodecKind(
        Blosc,
        is_lossless=True,
        ratios={("blosc2:lz4", "float32"): 1.13, ("blosc2:zstd", "float32"): 1.19},
    ),
}


def codec_of(name: str, dtype: str) -> Codec:
    """Return a codec by name, such as ``pack``, ``int8:256``, ``zfp:8`` or ``blosc2:zstd``."""
    kind = name.partition(":")[0]
    if kind not in CODECS:
        raise UnknownNameError(f"unknown codec {name!r}.", nearest(kind, CODECS))
    return CODECS[kind].build(name, dtype)


def is_lossless(name: str) -> bool:
    """Return whether decoding restores the input bit for bit.

    >>> is_lossless("delta+pack"), is_lossless("int8:64")
    (True, False)
    """
    kind = name.removeprefix("delta+").partition(":")[0]
    return kind in CODECS and CODECS[kind].is_lossless


def expected_ratio(name: str, dtype: str) -> float:
    """Return the compression ratio that a codec is expected to reach on weights.

    >>> expected_ratio("int8:256", "float32"), expected_ratio("zfp:8", "float32")
    (3.9384615384615387, 4.0)
    """
    codec = codec_of(name, dtype)
    name, _, parameter = codec.name.partition(":")
    kind, width = CODECS[name], 32 if dtype == "float32" else 16
    if kind.bits is not None:
        return max(1.0, width / kind.bits(parameter))
    return kind.ratios.get((codec.name, dtype), 1.0)


def encoded(codec: Codec, values: NDArray[np.generic]) -> Octets:
    """Return the frame of an array."""
    chunk = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    out = np.empty(codec.room(len(chunk)), np.uint8)
    return out[: codec.encode(chunk, out)]
