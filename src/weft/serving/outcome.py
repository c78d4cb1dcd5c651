"""What a server did: times of every answer, and what they come to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.units import brief

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]


def repeated(counted: Sequence[tuple[float, int]]) -> Floats:
    """Return each number as often as its count says."""
    numbers = np.array([each for each, _ in counted], dtype=np.float64)
    return np.repeat(numbers, np.array([count for _, count in counted], dtype=np.int64))


@dataclass(frozen=True)
class ServingOutcome:
    """Seconds to the first token of each request, between tokens, and of the whole run.

    ``fetching`` is what each request waited for its blocks, ``computing`` the seconds in which
    the devices had a forward pass to do, ``issuing`` those in which hosts only handed out copies.
    """

    __repr__ = brief

    first: Floats
    gaps: Floats
    fetching: Floats
    seconds: float
    tokens: int
    computing: float
    issuing: float
    passes: int

    @property
    def throughput(self) -> float:
        """Tokens that were answered, a second."""
        return self.tokens / self.seconds

    def row(self) -> dict[str, Any]:
        """Return the result as programs read it."""
        return {
            "ttft": float(self.first.mean()),
            "ttft_p99": float(np.quantile(self.first, 0.99)),
            "itl": float(self.gaps.mean()) if len(self.gaps) else None,
            "itl_p99": float(np.quantile(self.gaps, 0.99)) if len(self.gaps) else None,
            "fetching": float(self.fetching.mean()),
            "throughput": self.throughput,
            "requests_per_second": len(self.first) / self.seconds,
            "seconds": self.seconds,
            "computing": self.computing,
            "issuing": self.issuing,
            "passes": self.passes,
        }
