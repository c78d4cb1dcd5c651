"""``blosc2[:lz4|zstd]``: the lossless codecs of the blosc2 library."""

import importlib
from functools import cache
from typing import Any

from weft.compress.frame import Framed, Octets, check_float_dtype
from weft.errors import CodecError, UsageError

_NUMBER = 33  # of the codec in frames: numbers are never reused
_KINDS = ("lz4", "zstd")  # the index is the parameter stored in the frame
_HOLDS = slice(4, 8)  # offset of the decoded size in a payload (blosc2.h, BLOSC2_CHUNK_NBYTES)
_ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Blosc:
    """Bit shuffle and lz4 (fast), or byte shuffle and zstd (small)."""

    def __init__(self, name: str, dtype: str) -> None:
        check_float_dtype(name, dtype)
        kind = name.partition(":")[2] or "lz4"
        if kind not in _KINDS:
            raise UsageError(
                f"codec blosc2: unknown compressor {kind!r} (expected {' or '.join(_KINDS)})."
            )
        self.name, self.dtype = f"blosc2:{kind}", dtype
        self._kind = kind
        self._framed = Framed(self.name, _NUMBER, dtype, _KINDS.index(kind))
        self.room = self._framed.room

    def encode(self, chunk: Octets, out: Octets) -> int:
        """Write the frame of ``chunk`` to the front of ``out``, and return its length."""
        payload = bytes(len(chunk))  # stored unchanged: the library takes whole values only
        if len(chunk) and len(chunk) % _ITEM_BYTES[self.dtype] == 0:
            payload = _library().compress(chunk, **self._options())
        return self._framed.write(chunk, payload, out)

    def decode(self, frame: Octets, chunk: Octets) -> None:
        """Decode a frame into ``chunk``."""
        payload = self._framed.read(frame, chunk)
        if payload is None:
            return
        # The library allocates as much memory as the payload claims to hold.
        holds = int.from_bytes(payload[_HOLDS], "little")
        if holds != len(chunk):
            raise CodecError(
                f"codec {self.name!r}: a frame holds {holds} bytes, expected {len(chunk)}."
            )
        try:
            chunk[:] = memoryview(_library().decompress(payload))
        except (RuntimeError, ValueError) as error:
            raise CodecError(f"codec {self.name!r}: cannot decode a frame: {error}.") from error

    def _options(self) -> dict[str, Any]:
        quick = self._kind == "lz4"
        filters, codecs = _library().Filter, _library().Codec
        return {
            "typesize": _ITEM_BYTES[self.dtype],
            "clevel": 5 if quick else 1,
            "filter": filters.BITSHUFFLE if quick else filters.SHUFFLE,
            "codec": codecs.LZ4 if quick else codecs.ZSTD,
        }


@cache
def _library() -> Any:
    try:
        return importlib.import_module("blosc2")
    except ImportError as error:
        raise UsageError("codec 'blosc2' needs blosc2.", "pip install 'weft[compress]'") from error
