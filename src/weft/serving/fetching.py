"""What it takes to bring cached blocks back from the host's memory.

The schedules are those of ``weft.collectives.fetch``, priced by the simulator. A fetch of many
blocks is so many times the same command, so its time is a line in their number: two sizes are
simulated, and a test compares others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft.collectives import fetch, fetch_platform
from weft.collectives.fetch import FETCH_METHODS, WORKGROUPS
from weft.errors import UnknownNameError, nearest
from weft.schedule import CommandKind
from weft.simulator import simulate

if TYPE_CHECKING:
    from weft.hardware import Platform

RECOMPUTE = "recompute"  # nothing is fetched where all is computed again
FETCHES = (*FETCH_METHODS, RECOMPUTE)
BASELINE = "per-copy"
_FEW, _MANY = 512, 1536  # blocks of the two fetches that are simulated


@dataclass(frozen=True, slots=True)
class FetchPrice:
    """A fetch: ``seconds`` until all is there, for ``host`` of which its thread is busy."""

    host: float
    seconds: float


@dataclass
class Fetcher:
    """Prices fetches of blocks of one size by one way."""

    platform: Platform
    name: str
    block_bytes: int
    engines: int = 1
    _known: dict[int, FetchPrice] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in FETCHES:
            message = f"unknown fetch method {self.name!r}"
            raise UnknownNameError(message, nearest(self.name, FETCHES))

    @property
    def fetches(self) -> bool:
        """Whether anything is fetched at all."""
        return self.name != RECOMPUTE

    @property
    def units(self) -> int:
        """Compute units that are busy while blocks come: engines need none."""
        return WORKGROUPS if self.name == "kernel" else 0

    @property
    def rate(self) -> float:
        """Bytes a second that arrive while many blocks are fetched."""
        few, many = self._simulated(_FEW), self._simulated(_MANY)
        return (_MANY - _FEW) * self.block_bytes / (many.seconds - few.seconds)

    def price(self, num_blocks: int) -> FetchPrice:
        """Return what a fetch of so many blocks takes."""
        if num_blocks <= _MANY:
            return self._simulated(num_blocks)
        few, many = self._simulated(_FEW), self._simulated(_MANY)
        share = (num_blocks - _FEW) / (_MANY - _FEW)
        return FetchPrice(
            few.host + share * (many.host - few.host),
            few.seconds + share * (many.seconds - few.seconds),
        )

    def _simulated(self, num_blocks: int) -> FetchPrice:
        if num_blocks not in self._known:
            engines = min(self.engines, num_blocks) if self.name == "b2b" else 1
            schedule = fetch(num_blocks, self.block_bytes, self.name, engines=engines)
            machine = fetch_platform(
                self.platform, self.name, engines=engines, block_bytes=self.block_bytes
            )
            timeline = simulate(schedule, machine)
            handed = timeline.of(rank=0, queue="host", kind=CommandKind.SUBMIT)
            host = float((handed.end - handed.start).sum())
            self._known[num_blocks] = FetchPrice(host, timeline.seconds)
        return self._known[num_blocks]
