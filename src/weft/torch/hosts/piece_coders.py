"""Encoding of the pieces of a broadcast: whole or as deltas; decoding inline or in a thread."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from weft.compress import Codec, Delta, is_lossless
from weft.compress.codec_registry import Native
from weft.compress.frame import Octets

_SAMPLES, _SAMPLE = 4, 16 << 10  # bytes of the samples for the ratio


class PlainEncoder:
    """Encodes whole pieces."""

    def __init__(self, codec: Codec) -> None:
        self.name, self.codec, self.room = codec.name, codec, codec.room
        self.rounds = not is_lossless(codec.name)  # the root must use the decoded values, too

    def encode(self, chunk: Octets, out: Octets, at: int) -> int:
        """Write the frame of the chunk at offset ``at``."""
        del at
        return self.codec.encode(chunk, out)

    def decode(self, frame: Octets, chunk: Octets, at: int) -> None:
        """Fill a chunk."""
        del at
        self.codec.decode(frame, chunk)

    def encoded_bytes(self, chunk: Octets, at: int) -> int:
        """Return the length of the frame of a chunk."""
        del at
        return self.codec.encode(chunk, np.empty(self.room(len(chunk)), np.uint8))


class DeltaEncoder:
    """Encodes the difference of each piece to the last broadcast."""

    def __init__(self, delta: Delta) -> None:
        self.name, self.codec, self.room = delta.name, delta.codec, delta.room
        self.rounds = False  # encode() changes the root's data
        self._delta = delta
        self.decode, self.encoded_bytes = delta.decode, delta.encoded_bytes

    def encode(self, chunk: Octets, out: Octets, at: int) -> int:
        """Write the frame; with a lossy codec, replace the chunk by its decoded value."""
        size = self._delta.encode(chunk, out, at)
        if not self._delta.exact:
            chunk[:] = self._delta.held[at : at + len(chunk)]
        return size


PieceEncoder = PlainEncoder | DeltaEncoder


def sampled_ratio(coder: PieceEncoder, data: Octets) -> float:
    """Return the compression ratio of a few samples of the data."""
    step = (len(data) - _SAMPLE) // (_SAMPLES - 1) // 4 * 4
    places = [at * step for at in range(_SAMPLES)]
    return (
        _SAMPLES * _SAMPLE / sum(coder.encoded_bytes(data[at : at + _SAMPLE], at) for at in places)
    )


class BackgroundDecoder:
    """Decodes native codecs inline, and Python ones in a thread while data are in flight."""

    def __init__(self, codec: Codec) -> None:
        quick = isinstance(codec, Native)
        self._thread = None if quick else ThreadPoolExecutor(1, "weft-decode")
        self._in_flight: dict[int, Future[None]] = {}

    def do(self, number: int, act: Callable[[], None]) -> None:
        """Decode a piece, inline or in the thread."""
        if self._thread is None:
            act()
        else:
            self._in_flight[number] = self._thread.submit(act)

    def wait(self, number: int) -> None:
        """Wait until a piece is decoded; raise its error."""
        if (future := self._in_flight.pop(number, None)) is not None:
            future.result()

    def close(self) -> None:
        """Wait for all of them."""
        if self._thread is not None:
            self._thread.shutdown()
        for number in list(self._in_flight):
            self.wait(number)
