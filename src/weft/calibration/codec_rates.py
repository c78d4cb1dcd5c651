"""The encoding and decoding rates of codecs on one core of this machine."""

import time
from statistics import median

import numpy as np

from weft.compress import codec_of
from weft.hardware.measured import CodecRate

CODECS = ("pack", "bf16", "fp16", "int8")
_CHUNK = 256 << 10  # what is encoded at once
_CHUNKS = 16
_SPREAD = 0.02  # of weights, as layers of a transformer have it


def codec_rates() -> tuple[CodecRate, ...]:
    """Encode and decode weights chunk by chunk."""
    rng = np.random.default_rng(0)
    weights = (rng.standard_normal(_CHUNK * _CHUNKS // 4) * _SPREAD).astype(np.float32)
    chunks = weights.view(np.uint8).reshape(_CHUNKS, _CHUNK)
    return tuple(_rate(name, chunks) for name in CODECS)


def _rate(name: str, chunks: "np.ndarray[tuple[int, int], np.dtype[np.uint8]]") -> CodecRate:
    codec = codec_of(name, "float32")
    frame, back = np.empty(codec.room(_CHUNK), np.uint8), np.empty(_CHUNK, np.uint8)
    encode, decode, total = [], [], 0
    for chunk in chunks:
        begin = time.perf_counter()
        size = codec.encode(chunk, frame)
        middle = time.perf_counter()
        codec.decode(frame[:size], back)
        encode.append(middle - begin)
        decode.append(time.perf_counter() - middle)
        total += size
    fast, back_fast = (float(f"{_CHUNK / median(each):.4g}") for each in (encode, decode))
    return CodecRate(name, "float32", fast, back_fast, float(f"{chunks.nbytes / total:.4g}"))
