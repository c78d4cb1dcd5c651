"""``zfp:RATE``: zfp at a fixed number of bits a value, by its own library. Lossy and slow."""

import importlib
from functools import cache
from typing import Any

import numpy as np

from weft.compress.frame import Framed, Octets, require_float
from weft.errors import CodecError, UsageError

_NUMBER = 32
_USUAL = 16


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
        if payload is not None:
            values = _library().decompress_numpy(payload)
            if values.nbytes != len(chunk):
                raise CodecError(f"a frame of {self.name!r} holds {values.nbytes} bytes.")
            chunk[:] = values.view(np.uint8)


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
