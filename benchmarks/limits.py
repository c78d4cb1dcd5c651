"""What a figure must reach, and whether it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.rows import Row
from weft.local_runs.contest import PeerTiming
from weft.units import format_time


@dataclass(frozen=True, slots=True)
class AtMost:
    """The median time may not be longer."""

    seconds: float

    def __str__(self) -> str:
        return f"at most {format_time(self.seconds)}"

    def reached(self, row: Row) -> tuple[str, bool | None]:
        """Return what was measured and whether it is enough."""
        return format_time(row.seconds), row.seconds <= self.seconds


@dataclass(frozen=True, slots=True)
class Faster:
    """Weft must be that many times as fast as the best of some peers."""

    times: float
    peers: tuple[str, ...]

    def __str__(self) -> str:
        best = "the best of " if len(self.peers) > 1 else ""
        return f"{self.times:.3g}x {best}{', '.join(self.peers)}"

    def reached(self, row: Row) -> tuple[str, bool | None]:
        """Return the ratio to the best of the peers that were measured; all must have been."""
        ratio, name = min((peer.ratio, name) for name, peer in self._met(row.peers).items())
        complete = set(self.peers) <= set(row.peers)
        return f"{ratio:.2f}x {name}", (ratio >= self.times) and (complete or None)

    def _met(self, peers: Mapping[str, PeerTiming]) -> dict[str, PeerTiming]:
        return {name: peers[name] for name in self.peers if name in peers}

    def applies(self, row: Row) -> bool:
        """Return whether any of its peers was measured."""
        return bool(self._met(row.peers))


Limit = AtMost | Faster


def judged(row: Row, limits: Sequence[Limit]) -> dict[str, Any]:
    """Return what must be reached, what was, and whether that is enough; None: not all is known."""
    shown, verdicts = [], []
    for limit in limits:
        if isinstance(limit, Faster) and not limit.applies(row):
            text, verdict = "not measured", None
        else:
            text, verdict = limit.reached(row)
        shown.append(text)
        verdicts.append(verdict)
    met = False if False in verdicts else None if None in verdicts else True
    return {"must": "; ".join(map(str, limits)), "reached": "; ".join(shown), "met": met}
