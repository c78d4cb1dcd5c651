"""Codecs of the native core: none, pack, bf16, fp16, fp8, int8 and int4."""

from weft._core import Codec
from weft.compress.frame import Octets, check_float_dtype, check_frame_status
from weft.errors import UsageError


class Native:
    """A codec of the native core, which runs without the GIL."""

    def __init__(self, name: str, dtype: str) -> None:
        if name != "none":
            check_float_dtype(name, dtype)
        try:
            self.core = Codec(name, dtype)
        except ValueError as error:
            raise UsageError(f"{error}.", "For example: pack, int8:256, int4:64.") from error
        self.dtype = dtype
        kind = name.partition(":")[0]
        self.name = f"{kind}:{self.core.parameter}" if self.core.parameter else kind
        self.room = self.core.room

    def encode(self, chunk: Octets, out: Octets) -> int:
        """Write the frame of ``chunk`` to the front of ``out``, and return its length."""
        return self.core.encode(chunk, out)

    def decode(self, frame: Octets, chunk: Octets) -> None:
        """Decode a frame into ``chunk``."""
        check_frame_status(self.core.decode(frame, chunk), self.name)
