"""How long the pieces are that run along a chain of hosts."""

from math import sqrt

# The best ones for so many bytes at 1 Gbit/s, through Gloo between processes of a 2-core machine;
# a piece takes about a millisecond on the wire, long beside the wake-ups that it costs.
PIECES_OF, PIECES_AT = 16 << 20, 1e9 / 8
PIECE, ENCODED_PIECE = 128 << 10, 256 << 10
LEAST_PIECE, MOST_PIECE, MOST_TINY = 64 << 10, 2 << 20, 32 << 20
WHOLE = 4096  # a multiple of every codec's block
TINY = 32  # times shorter: the wire is then no matter, and pieces only cost


def piece_bytes(nbytes: int, ratio: float | None = None) -> int:
    """Give how long the pieces are that run along a chain of hosts, before they are encoded.

    K pieces of C bytes pass n hosts in (n - 2 + K)(t + C / rate): shortest for a C that grows
    with the root of size, ratio and what a piece costs, ``t``, which is more where it is encoded:
    there a ratio is given. At least four keep hosts busy. What nearly vanishes goes in two: the
    second is made while the first is read.
    """
    if ratio is not None and ratio >= TINY:
        return min(max(-(-nbytes // (2 * WHOLE)) * WHOLE, LEAST_PIECE), MOST_TINY)
    usual = PIECE if ratio is None else ENCODED_PIECE * sqrt(ratio)
    best = min(usual * sqrt(nbytes / PIECES_OF), nbytes / 4)
    return round(min(max(best, LEAST_PIECE), MOST_PIECE) / WHOLE) * WHOLE
