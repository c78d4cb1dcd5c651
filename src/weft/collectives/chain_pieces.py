"""Piece sizes of pipelines along a chain of hosts."""

from math import sqrt

# The fastest sizes measured at 1 Gbit/s, through Gloo between processes of a 2-core machine. A
# piece takes about a millisecond on the wire, long compared with the wake-ups it costs.
PIECES_OF, PIECES_AT = 16 << 20, 1e9 / 8
PIECE, ENCODED_PIECE = 128 << 10, 256 << 10
LEAST_PIECE, MOST_PIECE, MOST_TINY = 64 << 10, 2 << 20, 32 << 20
WHOLE = 4096  # a multiple of every codec's block
TINY = 32  # ratio from which the wire time is negligible and pieces only add cost


def piece_bytes(nbytes: int, ratio: float | None = None) -> int:
    """Return the piece size before encoding, for a pipeline along a chain of hosts.

    K pieces of C bytes pass n hosts in (n - 2 + K)(t + C / rate). The best C grows with the square
    root of the size, of the ratio, and of the cost per piece ``t``, which is larger with encoding
    (a ratio is given). At least four pieces keep the hosts busy. Data that nearly vanishes when
    encoded is sent in two pieces: the second is encoded while the first is decoded.
    """
    if ratio is not None and ratio >= TINY:
        return min(max(-(-nbytes // (2 * WHOLE)) * WHOLE, LEAST_PIECE), MOST_TINY)
    usual = PIECE if ratio is None else ENCODED_PIECE * sqrt(ratio)
    best = min(usual * sqrt(nbytes / PIECES_OF), nbytes / 4)
    return round(min(max(best, LEAST_PIECE), MOST_PIECE) / WHOLE) * WHOLE
