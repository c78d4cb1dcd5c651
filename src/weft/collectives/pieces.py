"""How long the pieces are that run along a chain of hosts."""

from math import sqrt

# The best ones for so many bytes at 1 Gbit/s, through Gloo between processes of a 2-core machine;
# a piece takes about a millisecond on the wire, long beside the wake-ups that it costs.
PIECES_OF, PIECES_AT = 16 << 20, 1e9 / 8
PIECE, ENCODED_PIECE = 128 << 10, 256 << 10
LEAST_PIECE, MOST_PIECE = 64 << 10, 2 << 20
WHOLE = 4096  # a multiple of every codec's block


def piece_bytes(nbytes: int, ratio: float | None = None, rate: float = PIECES_AT) -> int:
    """Give how long the pieces are that run along a chain of hosts, before they are encoded.

    K pieces of C bytes pass n hosts in (n - 2 + K)(t + C / rate): shortest for a C that grows
    with the root of size, ratio and what a piece costs, ``t``, which is more where it is encoded:
    there a ratio is given. On faster links cores are the limit, not links, and a piece shall take
    as long as on slow ones. At least four keep hosts busy.
    """
    usual = PIECE if ratio is None else ENCODED_PIECE * sqrt(ratio)
    best = min(usual * sqrt(nbytes / PIECES_OF) * rate / PIECES_AT, nbytes / 4)
    return round(min(max(best, LEAST_PIECE), MOST_PIECE) / WHOLE) * WHOLE
