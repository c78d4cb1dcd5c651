"""Which call a broadcast with a codec is."""

from weft.compress import codec_of, is_lossless
from weft.compress.delta import is_delta
from weft.errors import UsageError
from weft.runtime.prepared_cache import KEEP_ROOT, CallKey


def encoded_broadcast_key(
    codec: str, nbytes: int, dtype: str, root: int, *, keep_root: bool
) -> CallKey:
    """Give the call; an unknown codec or one for other values raises, on every rank alike."""
    name = codec_of(codec, dtype).name
    op = KEEP_ROOT if keep_root and not is_lossless(name) else ""
    return ("broadcast", nbytes, dtype, op, root, f"chain+{name}")


def require_compatible(
    codec: str, algorithm: str | None, *, keep_root: bool, async_op: bool
) -> None:
    """Raise where a codec is asked for together with what it cannot go with."""
    if algorithm is not None:
        raise UsageError(
            f"codec {codec!r} goes along a chain, not by {algorithm!r}.", "Leave one of them out."
        )
    if is_delta(codec) and (keep_root or async_op):
        what = "keep_root" if keep_root else "async_op"
        raise UsageError(
            f"{codec!r} has no {what}: all ranks remember the same bytes, in order.",
            f"Leave {what} out, or use {codec.partition('+')[2]!r}.",
        )
