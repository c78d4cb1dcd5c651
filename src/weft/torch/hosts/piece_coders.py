"""How pieces of a broadcast are encoded: as they are or as what changed, at once or aside."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from weft.compress import Codec, Delta, is_lossless
from weft.compress.frame import Octets
from weft.compress.native import Native

_SAMPLES, _SAMPLE = 4, 16 << 10  # bytes that tell how far data shrink


class PlainEncoder:
    """Encodes pieces as they are."""

    def __init__(self, codec: Codec) -> None:
        self.name, self.codec = codec.name, codec
        self.rounds = not is_lossless(codec.name)  # the root must take what it gave

    def encode(self, chunk: Octets, out: Octets, at: int) -> int:
        """Write the frame of a chunk that lies ``at`` a byte of the whole."""
        del at
        return self.codec.encode(chunk, out)

    def decode(self, frame: Octets, chunk: Octets, at: int) -> None:
        """Fill a chunk."""
        del at
        self.codec.decode(frame, chunk)

    def sample(self, chunk: Octets, at: int) -> Octets:
        """Give what will be encoded of a chunk."""
        del at
        return chunk


class DeltaEncoder:
    """Encodes what changed in each piece: while it is in the caches, and the next one comes."""

    def __init__(self, delta: Delta) -> None:
        self.name, self.codec = delta.name, delta.codec
        self.rounds = False  # encoding does it
        self._delta = delta
        self.decode, self.sample = delta.decode, delta.difference

    def encode(self, chunk: Octets, out: Octets, at: int) -> int:
        """Write the frame; after a lossy codec the chunk is what the others will have."""
        size = self._delta.encode(chunk, out, at)
        if not self._delta.exact:
            chunk[:] = self._delta.held[at : at + len(chunk)]
        return size


PieceEncoder = PlainEncoder | DeltaEncoder


def sampled_ratio(coder: PieceEncoder, data: Octets) -> float:
    """Give the ratio of some places of the data, far apart."""
    step = (len(data) - _SAMPLE) // (_SAMPLES - 1) // 4 * 4
    out = np.empty(coder.codec.room(_SAMPLE), np.uint8)
    places = [at * step for at in range(_SAMPLES)]
    chunks = (coder.sample(data[at : at + _SAMPLE], at) for at in places)
    return _SAMPLES * _SAMPLE / sum(coder.codec.encode(chunk, out) for chunk in chunks)


class BackgroundDecoder:
    """Decodes at once what is quick, and beside the wire what is a library of Python."""

    def __init__(self, codec: Codec) -> None:
        quick = isinstance(codec, Native)
        self._thread = None if quick else ThreadPoolExecutor(1, "weft-decode")
        self._in_flight: dict[int, Future[None]] = {}

    def do(self, number: int, act: Callable[[], None]) -> None:
        """Decode a piece, now or soon."""
        if self._thread is None:
            act()
        else:
            self._in_flight[number] = self._thread.submit(act)

    def wait(self, number: int) -> None:
        """Return when a piece is decoded; raise what was wrong with it."""
        if (future := self._in_flight.pop(number, None)) is not None:
            future.result()

    def close(self) -> None:
        """Wait for all of them."""
        if self._thread is not None:
            self._thread.shutdown()
        for number in list(self._in_flight):
            self.wait(number)
