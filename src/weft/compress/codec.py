"""What a codec is, and how one is found by its name."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weft.compress.blosc import Blosc
from weft.compress.frame import Octets, require_good
from weft.compress.native import Native
from weft.compress.zfp import Zfp
from weft.errors import UnknownNameError, nearest

LOSSLESS = ("none", "pack", "blosc2")


class Codec(Protocol):
    """Makes a frame of a chunk, and the chunk of a frame. ``name`` and ``dtype`` make it again.

    A frame says which codec made it and carries a checksum. A chunk that does not shrink goes
    as it is: a frame is never more than 32 bytes longer than its chunk.
    """

    @property
    def name(self) -> str:
        """Give the name with its parameter: ``int8:256``."""

    @property
    def dtype(self) -> str:
        """Give the dtype of the values in a chunk."""

    def room(self, nbytes: int) -> int:
        """Count the bytes to give ``encode`` for a chunk of ``nbytes``."""

    def encode(self, chunk: Octets, out: Octets) -> int:
        """Write the frame of ``chunk`` to the front of ``out``; give its length."""

    def decode(self, frame: Octets, chunk: Octets) -> None:
        """Fill ``chunk`` from its frame; a wrong frame raises and leaves ``chunk`` alone."""


CODECS: dict[str, Callable[[str, str], Codec]] = {
    **dict.fromkeys(("none", "pack", "bf16", "fp16", "fp8", "int8", "int4"), Native),
    "zfp": Zfp,
    "blosc2": Blosc,
}


def codec_of(name: str, dtype: str) -> Codec:
    """Find a codec by name, such as ``pack``, ``int8:256``, ``zfp:8`` or ``blosc2:zstd``."""
    kind = name.partition(":")[0]
    if kind not in CODECS:
        raise UnknownNameError(f"no codec is called {name!r}.", nearest(kind, CODECS))
    return CODECS[kind](name, dtype)


def is_lossless(name: str) -> bool:
    """Tell whether what comes out is what went in, bit for bit.

    >>> is_lossless("delta+pack"), is_lossless("int8:64")
    (True, False)
    """
    return name.removeprefix("delta+").partition(":")[0] in LOSSLESS


def encoded(codec: Codec, values: NDArray[np.generic]) -> Octets:
    """Give the frame of an array."""
    chunk = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
    out = np.empty(codec.room(len(chunk)), np.uint8)
    return out[: codec.encode(chunk, out)]


__all__ = ["CODECS", "Codec", "codec_of", "encoded", "is_lossless", "require_good"]
