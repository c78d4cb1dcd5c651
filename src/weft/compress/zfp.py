"""``zfp:RATE``: zfp with a fixed number of bits per value. Lossy and slow."""

import importlib
from functools import cache, lru_cache
from typing import Any

import numpy as np

from weft.compress.frame import Framed, Octets, check_float_dtype
from weft.errors import CodecError, UsageError
from weft.units import digits

_NUMBER = 32  # of the codec in frames: numbers are never reused
_USUAL = 16  # bits of a value
_HEAD = 12  # bytes: magic, 52 bits of type and shape, 12 bits of mode (zfp.h, ZFP_HEADER_FULL)


class Zfp:
    """float32 in RATE bits per value, 3 to 31; chunks with non-finite values are left as is."""

    def __init__(self, name: str, dtype: str) -> None:
        check_float_dtype(name, dtype, ("float32",))
        self._rate = _rate_of(name)
        self.name, self.dtype = f"zfp:{self._rate}", dtype
        self._framed = Framed(self.name, _NUMBER, dtype, self._rate)
        self.room = self._framed.room

    def encode(self, chunk: Octets, out: Octets) -> int:
        """Write the frame of ``chunk`` to the front of ``out``, and return its length."""
        values = chunk[: len(chunk) // 4 * 4].view(np.float32)
        # A part of a value has no code, and one that is not finite would corrupt its neighbours.
        if not len(values) or values.nbytes != len(chunk) or not np.isfinite(values).all():
            return self._framed.write(chunk, bytes(len(chunk)), out)
        return self._framed.write(chunk, _library().compress_numpy(values, rate=self._rate), out)

    def decode(self, frame: Octets, chunk: Octets) -> None:
        """Decode a frame into ``chunk``."""
        payload = self._framed.read(frame, chunk)
        if payload is None:
            return
        # The library trusts the size in the payload; with a fixed rate all of it is known.
        length, head = _shape(len(chunk) // 4, self._rate)
        if not length or len(payload) != length or payload[: len(head)] != head:
            raise CodecError(f"codec {self.name!r}: a frame does not hold {len(chunk)} bytes.")
        chunk[:] = _library().decompress_numpy(payload).view(np.uint8)


@lru_cache(maxsize=64)
def _shape(count: int, rate: int) -> tuple[int, bytes]:
    """Return the payload length of ``count`` values, and the header it must start with."""
    if not count:  # the library reads past the end otherwise
        return 0, b""
    payload = _library().compress_numpy(np.zeros(count, np.float32), rate=rate)
    return len(payload), payload[:_HEAD]


def _rate_of(name: str) -> int:
    text = name.partition(":")[2] or str(_USUAL)
    if not 3 <= (digits(text) or 0) <= 31:
        raise UsageError(
            f"codec zfp: rate must be 3 to 31 bits per value (got {text!r}).", "For example: zfp:8."
        )
    return int(text)


@cache
def _library() -> Any:
    try:
        return importlib.import_module("zfpy")
    except ImportError as error:
        raise UsageError("codec 'zfp' needs zfpy.", "pip install 'weft[compress]'") from error
