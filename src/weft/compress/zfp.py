"""``zfp:RATE``: zfp at a fixed number of bits a value, by its own library. Lossy and slow."""

import importlib
from functools import cache, lru_cache
from typing import Any

import numpy as np

from weft.compress.frame import Framed, Octets, require_float
from weft.errors import CodecError, UsageError

_NUMBER = 32
_USUAL = 16
_HEAD = 12  # bytes: magic, 52 bits of type and shape, 12 bits of mode (zfp.h, ZFP_HEADER_FULL)


class Zfp:
    """float32 as RATE bits a value, 3 to 31; a chunk with anything not finite goes as it is."""

    def __init__(self, name: str, dtype: str) -> None:
        require_float(name, dtype, ("float32",))
        self._rate = _rate_of(name)
        self.name, self.dtype = f"zfp:{self._rate}", dtype
        self._framed = Framed(self.name, _NUMBER, dtype, self._rate)
        self.room = self._framed.room

    def encode(self, chunk: Octets, out: Octets) -> int:
        """Write the frame of ``chunk`` to the front of ``out``; give its length."""
        values = chunk.view(np.float32)
        if not len(values) or not np.isfinite(values).all():  # it would poison its neighbours
            return self._framed.write(chunk, bytes(len(chunk)), out)
        return self._framed.write(chunk, _library().compress_numpy(values, rate=self._rate), out)

    def decode(self, frame: Octets, chunk: Octets) -> None:
        """Fill ``chunk`` from its frame."""
        payload = self._framed.read(frame, chunk)
        if payload is None:
            return
        # The library believes what the payload says of its size; a rate makes all of it known.
        length, head = _shape(len(chunk) // 4, self._rate)
        if not length or len(payload) != length or payload[: len(head)] != head:
            raise CodecError(f"a frame of {self.name!r} is not of {len(chunk)} bytes.")
        chunk[:] = _library().decompress_numpy(payload).view(np.uint8)


@lru_cache(maxsize=64)
def _shape(count: int, rate: int) -> tuple[int, bytes]:
    """Give the length of the payload of so many values, and the head that it begins with."""
    if not count:  # the library reads what is not there
        return 0, b""
    payload = _library().compress_numpy(np.zeros(count, np.float32), rate=rate)
    return len(payload), payload[:_HEAD]


def _rate_of(name: str) -> int:
    text = name.partition(":")[2] or str(_USUAL)
    if not text.isdigit() or not 3 <= int(text) <= 31:
        raise UsageError(f"zfp takes 3 to 31 bits a value, not {text!r}.", "For example: zfp:8.")
    return int(text)


@cache
def _library() -> Any:
    try:
        return importlib.import_module("zfpy")
    except ImportError as error:
        raise UsageError("codec 'zfp' needs zfpy.", "pip install 'weft[compress]'") from error
