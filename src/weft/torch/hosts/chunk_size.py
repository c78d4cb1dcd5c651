"""The chunk size of a broadcast: from a model, and on fast links by measurement."""

from typing import NamedTuple

from weft.collectives.chain import PIECES_AT, WHOLE, piece_bytes

LONG = 4 << 20  # bytes of a broadcast that is worth a message about its chunk size
# Links above this rate are faster than the model covers: CPU time per chunk exceeds the transfer,
# and depends on how many hosts share the cores.
FAST = 1.25 * PIECES_AT
LONGER = (4, 8, 16, 32)  # multiples of the model's size that are tried on fast links
TRIES = 2  # of each size; the shorter time counts

What = tuple[int, str]  # bytes of a broadcast, and its codec


class ChunkChoice(NamedTuple):
    """The bytes of a chunk, and whether the root waits for the last host to measure the time."""

    nbytes: int
    timed: bool = False


class ChunkSizeTuner:
    """Chooses chunk sizes from the measured broadcasts of which this rank was the root."""

    def __init__(self) -> None:
        self._rates: dict[What, list[float]] = {}  # bytes a second on the wire
        self._tried: dict[What, dict[int, list[float]]] = {}
        self.last = 0  # bytes of a piece of the last broadcast

    def choose(self, nbytes: int, ratio: float | None = None, codec: str = "none") -> ChunkChoice:
        """Return a chunk size: on fast links an untried one, then the best."""
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
        """Record a timed broadcast; untimed ones end on the root before they arrive."""
        self.last = cut.nbytes
        if not cut.timed:
            return
        if len(rates := self._rates[what]) < TRIES:
            rates.append(wire_bytes / seconds)
        else:
            self._tried[what][cut.nbytes].append(seconds)
