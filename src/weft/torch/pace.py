"""How long the pieces of a broadcast are: by model, and on fast links by what was found best."""

from weft.collectives.pieces import PIECES_AT, WHOLE, piece_bytes

LONG = 4 << 20  # bytes of a broadcast for which it is worth a message to say how long pieces are
# Links that carry this much are faster than the model was made for: there what cores do for a
# piece takes longer than the wire, and how long that is depends on how many hosts share them.
FAST = 1.25 * PIECES_AT
LONGER = (4, 8, 16, 32)  # times what the model says: lengths that are tried on fast links
TRIES = 2  # of each length; the shorter time counts

What = tuple[int, str]  # bytes of a broadcast, and its codec


class Pace:
    """What one rank learned from the broadcasts that it was the root of."""

    def __init__(self, num_hosts: int) -> None:
        self._between = max(num_hosts - 2, 0)
        self._rates: dict[What, float] = {}  # bytes a second on the wire
        self._tried: dict[What, dict[int, list[float]]] = {}
        self.last = 0  # bytes of a piece of the last broadcast

    def piece(self, nbytes: int, ratio: float | None = None, codec: str = "none") -> int:
        """Choose a length; on fast links one that was not tried yet, then the best."""
        usual = piece_bytes(nbytes, ratio)
        if nbytes < LONG or self._rates.get((nbytes, codec), 0.0) < FAST:
            return usual
        tried = self._tried.setdefault((nbytes, codec), {})
        for factor in LONGER:
            longer = min(factor * usual, nbytes // 4) // WHOLE * WHOLE
            if len(tried.setdefault(longer, [])) < TRIES:
                return longer
        return min(tried, key=lambda length: min(tried[length]))

    def note(self, what: What, piece: int, wire_bytes: int, seconds: float) -> None:
        """Learn from a broadcast in pieces of so many bytes.

        A root is done when its last piece has left; the hosts between then still pass it on.
        """
        nbytes, _ = what
        self.last = piece
        if nbytes < LONG:
            return
        self._rates[what] = wire_bytes / seconds
        times = self._tried.get(what, {}).get(piece)
        if times is not None and len(times) < TRIES:
            times.append(seconds * (1 + self._between * piece / nbytes))
