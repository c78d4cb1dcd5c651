"""What codecs make of weights, and how fast, on one core.

A core that others share changes its speed by half within seconds, so all codecs take turns, and
the rate is that of every chunk's shortest time, the median over the chunks. ``seconds`` of a row
are the medians of all rounds, so that a row also says how unsteady the machine was.
"""

import time
from collections.abc import Iterator, Sequence
from functools import cache
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.rows import Options, Row
from weft.compress import Codec, codec_of, is_lossless
from weft.compress.codec_registry import Native
from weft.compress.frame import Octets

QUESTION = "How fast is each codec on one core, and how much does it save of trained weights?"
CODECS = ("pack", "bf16", "fp16", "fp8", "int8", "int8:64", "int4", "blosc2:lz4", "blosc2:zstd")
SLOW = ("zfp:16", "zfp:8")
SIZE = 256 << 10  # of a chunk: what a broadcast encodes at once
_MOST_CHUNKS = 40
_ROUNDS, _SLOW_ROUNDS = 15, 3
_LINE, _PAGE = 64, 4096  # bytes
_LARGE = 8 << 20  # bytes for which numpy asks the kernel for large pages, and gets some


class _Kind(NamedTuple):
    name: str
    dtype: str = "float32"
    data: str = "weights"  # or zeros, or sparse


def _kinds() -> list[_Kind]:
    both = [_Kind(name, dtype) for name in CODECS for dtype in ("float32", "bfloat16")]
    zeros = [_Kind("pack", data=data) for data in ("zeros", "sparse")]
    return [*both, *map(_Kind, SLOW), *zeros]


def run(options: Options) -> Iterator[Row]:
    """Encode and decode weights chunk by chunk, as a broadcast does."""
    for nbytes in options.sizes or (SIZE,):
        timings = [_Timing(kind, nbytes) for kind in _kinds()]
        for number in range(max(options.rounds, _ROUNDS)):
            for timing in timings:
                if number < _SLOW_ROUNDS or isinstance(timing.codec, Native):
                    timing.take()
        for timing in timings:
            yield from timing.rows()


def count_rows(options: Options) -> int:
    """Return how many rows there will be: one each way."""
    return 2 * len(_kinds()) * max(len(options.sizes), 1)


@cache
def chunks_of(data: str, dtype: str, nbytes: int) -> list[Octets]:
    """Return chunks of trained weights, of zeros, or of weights of which 90 % are zero."""
    from benchmarks.torch_weights import trained_weights

    values = trained_weights()
    if data == "zeros":
        values = np.zeros_like(values)
    elif data == "sparse":
        kept = np.random.default_rng(0).random(len(values)) < 0.1
        values = np.where(kept, values, np.float32(0))
    whole = _rounded(values) if dtype == "bfloat16" else values.view(np.uint8)
    count = min(len(whole) // nbytes, _MOST_CHUNKS)
    held = _memory(count * nbytes)
    held[:] = whole[: len(held)]
    return list(held.reshape(count, nbytes))


def _memory(nbytes: int, place: int = 0) -> Octets:
    """Return memory that begins at a place of its page, as tensors do with a line, on large pages.

    Where two arrays lie at the same place, a load waits for stores to the other one. Small pages
    lie anywhere, so that by chance more of them meet in a set of the second cache than it holds.
    """
    raw = np.zeros(max(nbytes + 2 * _PAGE, _LARGE), np.uint8)
    first = (place - raw.ctypes.data) % _PAGE
    return raw[first : first + nbytes]


def _rounded(values: NDArray[np.float32]) -> Octets:
    """Return the values as bfloat16, without the head of their frame."""
    codec = codec_of("bf16", "float32")
    frame = np.empty(codec.room(values.nbytes), np.uint8)
    size = codec.encode(values.view(np.uint8), frame)
    return frame[size - values.nbytes // 2 : size]


class _Timing:
    """One codec on one kind of data, round by round."""

    def __init__(self, kind: _Kind, nbytes: int) -> None:
        self._kind, self._nbytes = kind, nbytes
        self.codec = codec_of(kind.name, kind.dtype)
        self._chunks = chunks_of(kind.data, kind.dtype, nbytes)
        self._frame = _memory(self.codec.room(nbytes), 9 * _LINE)
        self._back = _memory(nbytes, 17 * _LINE)
        self._rounds: list[list[tuple[float, float, int]]] = []

    def take(self) -> None:
        """Time every chunk once."""
        each = [_timed(self.codec, chunk, self._frame, self._back) for chunk in self._chunks]
        self._rounds.append(each)

    def rows(self) -> Iterator[Row]:
        """Return what came out, each way."""
        total = sum(times[2] for times in self._rounds[0])
        ratio = self._nbytes * len(self._chunks) / total
        more = {"ratio": ratio, "error": _error(self.codec, self._chunks)}
        for way, operator in enumerate(("encode", "decode")):
            times = [[chunk[way] for chunk in each] for each in self._rounds]
            rate = self._nbytes / _least(times) / 1e9
            case = {**self._kind._asdict(), "nbytes": self._nbytes, "operator": operator}
            case["codec"] = case.pop("name")
            medians = tuple(median(each) for each in times)
            yield Row("codecs", case, medians, {}, {"gb_per_s": rate, **more})


def _least(rounds: Sequence[Sequence[float]]) -> float:
    """Return the median over the chunks of the shortest time of each."""
    return float(median(min(times) for times in zip(*rounds, strict=True)))


def _timed(codec: Codec, chunk: Octets, frame: Octets, back: Octets) -> tuple[float, float, int]:
    """Return the seconds to encode and to decode, and the bytes between: the second time each.

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
    """Return the relative L2 error of float32; what is lossless must be equal."""
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
