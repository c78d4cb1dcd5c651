"""Signatures of broadcasts with a codec."""

from weft.compress import codec_of, is_lossless
from weft.compress.delta import is_delta
from weft.errors import UsageError
from weft.runtime.prepared_cache import KEEP_ROOT, CallKey


def encoded_broadcast_key(
    codec: str, nbytes: int, dtype: str, root: int, *, keep_root: bool
) -> CallKey:
    """Return the call key; raise for an unknown codec or one that does not take the dtype."""
    name = codec_of(codec, dtype).name
    op = KEEP_ROOT if keep_root and not is_lossless(name) else ""
    return ("broadcast", nbytes, dtype, op, root, f"chain+{name}")


def require_compatible(
    codec: str, algorithm: str | None, *, keep_root: bool, async_op: bool
) -> None:
    """Raise if a codec is combined with arguments that it does not support."""
    if algorithm is not None:
        raise UsageError(
            f"codec: {codec!r} works with the chain algorithm only (got algorithm {algorithm!r}).",
            "Omit one of them.",
        )
    if is_delta(codec) and (keep_root or async_op):
        what = "keep_root" if keep_root else "async_op"
        raise UsageError(
            f"{what}: not supported by codec {codec!r}, which needs the same history on all ranks.",
            f"Omit {what}, or use codec {codec.partition('+')[2]!r}.",
        )
