"""How long the pieces of a broadcast are: by model, and on fast links by what was found best."""

from typing import NamedTuple

from weft.collectives.chain_pieces import PIECES_AT, WHOLE, piece_bytes

LONG = 4 << 20  # bytes of a broadcast for which it is worth a message to say how long pieces are
# Links that carry this much are faster than the model was made for: there what cores do for a
# piece takes longer than the wire, and how long that is depends on how many hosts share them.
FAST = 1.25 * PIECES_AT
LONGER = (4, 8, 16, 32)  # times what the model says: lengths that are tried on fast links
TRIES = 2  # of each length; the shorter time counts

What = tuple[int, str]  # bytes of a broadcast, and its codec


class ChunkChoice(NamedTuple):
    """How long pieces are, and whether the root waits for the last host, to learn the time."""

    nbytes: int
    timed: bool = False


class ChunkSizeTuner:
    """What one rank learned from the broadcasts that it was the root of."""

    def __init__(self) -> None:
        self._rates: dict[What, list[float]] = {}  # bytes a second on the wire
        self._tried: dict[What, dict[int, list[float]]] = {}
        self.last = 0  # bytes of a piece of the last broadcast

    def choose(self, nbytes: int, ratio: float | None = None, codec: str = "none") -> ChunkChoice:
        """Choose a length: on fast links one that was not tried yet, then the best."""
        usual = piece_bytes(nbytes, ratio)
        if nbytes < LONG:
            return ChunkChoice(usual)
        rates = self._rates.setdefault((nbytes, codec), [])
        if len(rates) < TRIES:
            return ChunkChoice(usual, timed=True)
        return self._next_trial((nbytes, codec), usual) if max(rates) > FAST else ChunkChoice(usual)

    def _next_trial(self, what: What, usual: int) -> ChunkChoice:
        tried = self._tried.setdefault(what, {})
        for factor in LONGER:
            longer = min(factor * usual, max(usual, what[0] // 4)) // WHOLE * WHOLE
            if len(tried.setdefault(longer, [])) < TRIES:
                return ChunkChoice(longer, timed=True)
        return ChunkChoice(min(tried, key=lambda length: min(tried[length])))

    def record(self, what: What, cut: ChunkChoice, wire_bytes: int, seconds: float) -> None:
        """Learn from a broadcast that was timed: what a root has sent may be under way for long."""
        self.last = cut.nbytes
        if not cut.timed:
            return
        if len(rates := self._rates[what]) < TRIES:
            rates.append(wire_bytes / seconds)
        else:
            self._tried[what][cut.nbytes].append(seconds)
