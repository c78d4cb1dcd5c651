"""How long the pieces are that run along a chain of hosts."""

from math import sqrt

PIECES_OF = 16 << 20  # bytes, for which pieces of the lengths below are the best ones here
PIECE, ENCODED_PIECE = 128 << 10, 256 << 10
LEAST_PIECE, MOST_PIECE = 64 << 10, 2 << 20
WHOLE = 4096  # a multiple of every codec's block


def piece_bytes(nbytes: int, ratio: float | None = None) -> int:
    """Give how long the pieces are that run along a chain of hosts, before they are encoded.

    K pieces of C bytes pass n hosts in (n - 2 + K)(t + C / rate): shortest for a C that grows
    with the root of size, ratio and what a piece costs, ``t``, which is more where it is encoded:
    there a ratio is given. At least four keep hosts busy.
    """
    usual = PIECE if ratio is None else ENCODED_PIECE * sqrt(ratio)
    best = min(usual * sqrt(nbytes / PIECES_OF), nbytes / 4)
    return round(min(max(best, LEAST_PIECE), MOST_PIECE) / WHOLE) * WHOLE
