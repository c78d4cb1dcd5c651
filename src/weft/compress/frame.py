"""The frame around what a codec makes, for codecs that are libraries of Python."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft._core import FRAME_HEAD, Codec, Verdict, seal, verdict_reason
from weft.errors import CodecError, UsageError

Octets = NDArray[np.uint8]
FLOATS = {"float32": 1, "bfloat16": 2, "float16": 3}  # as the native core numbers them
_PAYLOAD = slice(16, 24)  # where the head has its length


HINTS = {
    Verdict.VERSION: "All ranks must run the same version of weft.",
    Verdict.CODEC: "All ranks must ask for the same codec and dtype.",
}


def require_good(verdict: int, codec: str) -> None:
    """Raise what the native core found wrong with a frame."""
    if verdict == 0:  # good; an enumeration takes as long to make as a chunk to decode
        return
    found = Verdict(verdict)
    failure = CodecError(
        f"a frame cannot be decoded by {codec!r}: {verdict_reason(found)}.", HINTS.get(found, "")
    )
    failure.verdict = found
    raise failure


def require_float(name: str, dtype: str, known: Any = FLOATS) -> None:
    """Raise where a codec for floating point is asked to encode something else."""
    if dtype not in known:
        raise UsageError(
            f"codec {name!r} is for {', '.join(known)}, not {dtype}.",
            "Leave tensors of other types out, or use codec 'none' for them.",
        )


def frame_bytes(slot: Octets) -> int:
    """Read how long the frame at the front of ``slot`` says it is."""
    return FRAME_HEAD + int.from_bytes(slot[_PAYLOAD].tobytes(), "little")


class Framed:
    """Frames payloads of one codec; what does not shrink goes as it is."""

    def __init__(self, name: str, number: int, dtype: str, parameter: int = 0) -> None:
        self._name = name
        self._key = (number, FLOATS[dtype], parameter)
        self._plain = Codec("none", dtype)

    @staticmethod
    def room(nbytes: int) -> int:
        """Count the bytes of the longest frame of a chunk."""
        return FRAME_HEAD + nbytes

    def write(self, chunk: Octets, payload: bytes, out: Octets) -> int:
        """Frame ``payload``, or ``chunk`` itself where that is no longer."""
        if len(payload) >= len(chunk):
            return self._plain.encode(chunk, out)
        out[FRAME_HEAD : FRAME_HEAD + len(payload)] = np.frombuffer(payload, np.uint8)
        return seal(out, *self._key, len(chunk), len(payload))

    def read(self, frame: Octets, chunk: Octets) -> bytes | None:
        """Give the payload of a frame; None where it was the chunk itself, now filled."""
        if len(frame) < FRAME_HEAD:
            require_good(Verdict.CUT, self._name)
        if frame[3] == 0:  # the codec "none" wrote it
            require_good(self._plain.decode(frame, chunk), self._name)
            return None
        again = np.array(frame)  # sealed again it must be the same: that is the whole check
        seal(again, *self._key, len(chunk), len(frame) - FRAME_HEAD)
        if not np.array_equal(again[:FRAME_HEAD], frame[:FRAME_HEAD]):
            require_good(self._why(frame, again), self._name)
        return again[FRAME_HEAD:].tobytes()

    @staticmethod
    def _why(frame: Octets, again: Octets) -> Verdict:
        if not np.array_equal(frame[:3], again[:3]):
            return Verdict.VERSION
        if not np.array_equal(frame[_PAYLOAD], again[_PAYLOAD]):
            return Verdict.CUT
        if not np.array_equal(frame[3:8], again[3:8]):
            return Verdict.CODEC
        return Verdict.SIZE if not np.array_equal(frame[8:16], again[8:16]) else Verdict.CHECKSUM
