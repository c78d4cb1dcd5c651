"""What a way of carrying out a collective does to a step, as its planner sees it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weft.planner.plan import Alternative

if TYPE_CHECKING:
    from weft.cost.price import Price
    from weft.planner.lookup_ops import Lookups
    from weft.planner.plan import Settings
    from weft.schedule import Cost
    from weft.workload import Collective

# A fused kernel sends its output in slices: the first transfer starts with the first of them.
SLICES = 16
# Fused kernels run at 12.5 % less occupancy (SC24, arXiv 2305.06942): the worst of a range from 1.
OCCUPANCY = 1.125


@dataclass(frozen=True, slots=True)
class Way:
    """One way to carry out the collective of a pair.

    ``alone`` are its seconds with a range, ``beside`` how many times as long it takes while
    kernels run, ``compute`` how many times as long these take meanwhile. A ``serial`` one runs on
    the stream of the kernels; one with ``slices`` starts inside the kernel that makes its input,
    which takes ``producer`` times as long. ``memory`` are the bytes that it takes of a plan's.
    """

    strategy: str
    alone: Price
    beside: float = 1.0
    compute: float = 1.0
    serial: bool = False
    slices: int = 0
    producer: float = 1.0
    freed: tuple[tuple[int, int], ...] = ()  # ops that fall away
    settings: Settings = field(default_factory=dict, hash=False)
    memory: int = 0
    why: str = ""
    pair: float | None = None  # seconds of both, where the pair itself was priced

    @property
    def label(self) -> str:
        """Name it with what tells it from others of its strategy."""
        told = [str(v) for k, v in self.settings.items() if k != "backend" or v == "weft"]
        return f"{self.strategy} ({', '.join(told)})" if told else self.strategy


@dataclass(frozen=True, slots=True)
class Pair:
    """A collective of a step, and what runs beside it; all that are equal are one pair.

    ``members`` are (class of ranks, number of the op). ``hidden`` is the share of its time in
    which kernels run beside it, ``by_memory`` the share of these that memory bounds, ``beside`` the
    name of most of them; ``makers`` are kernels that make its input and could send it in slices.
    """

    what: Collective
    ranks: tuple[int, ...]
    members: tuple[tuple[int, int], ...]
    hidden: float
    by_memory: float
    phase: str = ""
    makers: tuple[tuple[int, int], ...] = ()
    made_by: str = ""
    making: float = 0.0  # seconds of the slowest of the makers
    beside: str = ""
    gemm: Cost | None = None  # all that runs beside it, where that is one product
    looks_up: bool = False  # whether embedding tables make its input or take its output
    lookups: tuple[Lookups, ...] = ()  # of each member, where all have some


def refused(strategy: str, why: str, settings: Settings | None = None) -> Alternative:
    """Say why a way cannot be gone here."""
    return Alternative(strategy, settings or {}, None, why)
