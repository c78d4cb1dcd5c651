"""What codecs make of weights, and how fast, on one core."""

import time
from collections.abc import Iterator
from statistics import median

import numpy as np
from numpy.typing import NDArray

from weft.bench.rows import Options, Row
from weft.compress import Codec, codec_of, is_lossless
from weft.compress.frame import Octets
from weft.compress.native import Native

QUESTION = "How fast is each codec on one core, and how much does it save of trained weights?"
CODECS = ("pack", "bf16", "fp16", "fp8", "int8", "int8:64", "int4", "blosc2:lz4", "blosc2:zstd")
SLOW = ("zfp:16", "zfp:8")
SIZE = 256 << 10  # of a chunk: what a broadcast encodes at once
_DATA = ("weights", "zeros", "sparse")
_MOST_CHUNKS = 40


def run(options: Options) -> Iterator[Row]:
    """Encode and decode weights chunk by chunk, as a broadcast does."""
    for nbytes in options.sizes or (SIZE,):
        for name in (*CODECS, *SLOW):
            for dtype in ("float32",) if name.startswith("zfp") else ("float32", "bfloat16"):
                yield from _measure(name, dtype, "weights", nbytes, options.rounds)
        for data in _DATA[1:]:
            yield from _measure("pack", "float32", data, nbytes, options.rounds)


def chunks_of(data: str, dtype: str, nbytes: int) -> list[Octets]:
    """Give chunks of trained weights, of zeros, or of weights of which 90 % are zero."""
    from weft.bench.torch_weights import trained_weights

    values = trained_weights()
    if data == "zeros":
        values = np.zeros_like(values)
    elif data == "sparse":
        kept = np.random.default_rng(0).random(len(values)) < 0.1
        values = np.where(kept, values, np.float32(0))
    whole = _rounded(values) if dtype == "bfloat16" else values.view(np.uint8)
    count = min(len(whole) // nbytes, _MOST_CHUNKS)
    return [whole[at * nbytes : (at + 1) * nbytes].copy() for at in range(count)]


def _rounded(values: NDArray[np.float32]) -> Octets:
    """Give the values as bfloat16, without the head of their frame."""
    codec = codec_of("bf16", "float32")
    frame = np.empty(codec.room(values.nbytes), np.uint8)
    size = codec.encode(values.view(np.uint8), frame)
    return frame[size - values.nbytes // 2 : size]


def _measure(name: str, dtype: str, data: str, nbytes: int, rounds: int) -> Iterator[Row]:
    codec, chunks = codec_of(name, dtype), chunks_of(data, dtype, nbytes)
    frame, back = np.empty(codec.room(nbytes), np.uint8), np.empty(nbytes, np.uint8)
    encode, decode, total = [], [], 0
    for _ in range(max(rounds, 3)):
        each = [_timed(codec, chunk, frame, back) for chunk in chunks]
        encode.append(median(times[0] for times in each))
        decode.append(median(times[1] for times in each))
        total = sum(times[2] for times in each)
    more = {"ratio": nbytes * len(chunks) / total, "error": _error(codec, chunks)}
    for operator, times in (("encode", encode), ("decode", decode)):
        case = {"codec": name, "dtype": dtype, "data": data, "nbytes": nbytes, "operator": operator}
        rate = nbytes / median(times) / 1e9
        yield Row("codecs", case, tuple(times), {}, {"gb_per_s": rate, **more})


def _timed(codec: Codec, chunk: Octets, frame: Octets, back: Octets) -> tuple[float, float, int]:
    """Give the seconds to encode and to decode, and the bytes between: the second time each.

    A codec of the native core is timed there: the call of it takes a quarter as long as itself.
    """
    if isinstance(codec, Native):
        return codec.core.time(chunk, frame, back)
    size = 0
    for _ in range(2):
        begin = time.perf_counter()
        size = codec.encode(chunk, frame)
        middle = time.perf_counter()
        codec.decode(frame[:size], back)
        end = time.perf_counter()
    return middle - begin, end - middle, size


def _error(codec: Codec, chunks: list[Octets]) -> float:
    """Give the relative L2 error of float32; what is lossless must be equal."""
    wrong = size = 0.0
    for chunk in chunks:
        frame, back = np.empty(codec.room(len(chunk)), np.uint8), np.empty_like(chunk)
        codec.decode(frame[: codec.encode(chunk, frame)], back)
        if is_lossless(codec.name):
            assert np.array_equal(back, chunk), codec.name
        elif codec.dtype == "float32":
            want, have = chunk.view(np.float32), back.view(np.float32)
            wrong += float(np.square(have - want, dtype=np.float64).sum())
            size += float(np.square(want, dtype=np.float64).sum())
    return float(np.sqrt(wrong / size)) if size else 0.0
