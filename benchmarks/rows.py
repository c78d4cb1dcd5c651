"""What a benchmark is asked and what it answers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from weft.local_runs.contest import PeerTiming


@dataclass(frozen=True, slots=True)
class Options:
    """What the user narrows a benchmark down to; empty means all that it knows."""

    against: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    seeds: tuple[int, ...] = ()
    rounds: int = 5
    collectives: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    per_rank: bool = False
    pin: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One measured case: the median of weft's times, their spread, and the peers.

    ``more`` are figures of this benchmark alone: an expected answer, CPU time, memory.
    """

    bench: str
    case: dict[str, Any]
    times: tuple[float, ...]
    peers: dict[str, PeerTiming] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """The median time."""
        return median(self.times)

    @property
    def spread(self) -> float:
        """The distance between the quartiles."""
        if len(self.times) < 2:
            return 0.0
        low, _, high = quantiles(self.times, n=4, method="inclusive")
        return high - low

    def as_result(self) -> dict[str, Any]:
        """Return the keys of a result row."""
        peers = {
            name: {"seconds": peer.seconds, "ratio": peer.ratio}
            for name, peer in self.peers.items()
        }
        result = {"bench": self.bench, "case": self.case, "seconds": self.seconds}
        return {**result, "spread": self.spread, "peers": peers, "basis": "measured", **self.more}


@dataclass(frozen=True, slots=True)
class Bench:
    """A question and the function that answers it, row by row, as many as ``count`` says."""

    name: str
    question: str
    run: Callable[[Options], Iterable[Row]]
    count: Callable[[Options], int] | None = None
