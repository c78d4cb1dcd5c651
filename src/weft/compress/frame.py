"""The frame around encoded payloads, for codecs that are Python libraries."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft._core import FRAME_HEAD, Codec, FrameStatus, frame_status_reason, seal
from weft.errors import CodecError, UsageError

Octets = NDArray[np.uint8]
FLOATS = {"float32": 1, "bfloat16": 2, "float16": 3}  # as numbered by the native core
_PAYLOAD = slice(16, 24)  # offset of the length in the header


HINTS = {
    FrameStatus.VERSION: "All ranks must run the same version of weft.",
    FrameStatus.CODEC: "All ranks must ask for the same codec and dtype.",
}


def check_frame_status(verdict: int, codec: str) -> None:
    """Raise a CodecError for an invalid frame."""
    if verdict == 0:  # valid; constructing an enum member takes as long as decoding a chunk
        return
    found = FrameStatus(verdict)
    failure = CodecError(
        f"codec {codec!r} cannot decode a frame: {frame_status_reason(found)}.",
        HINTS.get(found, ""),
    )
    failure.verdict = found
    raise failure


def check_float_dtype(name: str, dtype: str, known: Any = FLOATS) -> None:
    """Raise a UsageError if a floating-point codec is used for another dtype."""
    if dtype not in known:
        raise UsageError(
            f"codec {name!r}: unsupported dtype {dtype} (expected {', '.join(known)}).",
            "Exclude tensors of other dtypes, or use codec 'none' for them.",
        )


def frame_bytes(slot: Octets) -> int:
    """Return the length of the frame at the front of ``slot``, as its header states it."""
    return FRAME_HEAD + int.from_bytes(slot[_PAYLOAD].tobytes(), "little")


class Framed:
    """Frames payloads of one codec; a chunk that does not shrink is stored unchanged."""

    def __init__(self, name: str, number: int, dtype: str, parameter: int = 0) -> None:
        self._name = name
        self._key = (number, FLOATS[dtype], parameter)
        self._plain = Codec("none", dtype)

    @staticmethod
    def room(nbytes: int) -> int:
        """Return the size of the longest frame of a chunk of ``nbytes``."""
        return FRAME_HEAD + nbytes

    def write(self, chunk: Octets, payload: bytes, out: Octets) -> int:
        """Write the frame of ``payload``, or of ``chunk`` itself if that is no longer."""
        if len(payload) >= len(chunk):
            return self._plain.encode(chunk, out)
        out[FRAME_HEAD : FRAME_HEAD + len(payload)] = np.frombuffer(payload, np.uint8)
        return seal(out, *self._key, len(chunk), len(payload))

    def read(self, frame: Octets, chunk: Octets) -> bytes | None:
        """Return the payload of a frame, or None if the frame held the chunk unchanged."""
        if len(frame) < FRAME_HEAD:
            check_frame_status(FrameStatus.CUT, self._name)
        if frame[3] == 0:  # the codec "none" wrote it
            check_frame_status(self._plain.decode(frame, chunk), self._name)
            return None
        again = np.array(
            frame
        )  # framing the payload again must give the same bytes: this checks all fields
        seal(again, *self._key, len(chunk), len(frame) - FRAME_HEAD)
        if not np.array_equal(again[:FRAME_HEAD], frame[:FRAME_HEAD]):
            check_frame_status(self._why(frame, again), self._name)
        return again[FRAME_HEAD:].tobytes()

    @staticmethod
    def _why(frame: Octets, again: Octets) -> FrameStatus:
        if not np.array_equal(frame[:3], again[:3]):
            return FrameStatus.VERSION
        if not np.array_equal(frame[_PAYLOAD], again[_PAYLOAD]):
            return FrameStatus.CUT
        if not np.array_equal(frame[3:8], again[3:8]):
            return FrameStatus.CODEC
        return (
            FrameStatus.SIZE
            if not np.array_equal(frame[8:16], again[8:16])
            else FrameStatus.CHECKSUM
        )
