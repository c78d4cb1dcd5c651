"""Codecs of the native core: none, pack, bf16, fp16, fp8, int8 and int4."""

from weft._core import Codec
from weft.compress.frame import Octets, require_float, require_good
from weft.errors import UsageError


class Native:
    """A codec that runs in the native core, without the interpreter's lock."""

    def __init__(self, name: str, dtype: str) -> None:
        if name != "none":
            require_float(name, dtype)
        try:
            self.core = Codec(name, dtype)
        except ValueError as error:
            raise UsageError(f"{error}.", "For example: pack, int8:256, int4:64.") from error
        self.dtype = dtype
        kind = name.partition(":")[0]
        self.name = f"{kind}:{self.core.parameter}" if self.core.parameter else kind
        self.room = self.core.room

    def encode(self, chunk: Octets, out: Octets) -> int:
        """Write the frame of ``chunk`` to the front of ``out``; give its length."""
        return self.core.encode(chunk, out)

    def decode(self, frame: Octets, chunk: Octets) -> None:
        """Fill ``chunk`` from its frame."""
        require_good(self.core.decode(frame, chunk), self.name)
