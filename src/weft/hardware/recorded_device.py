"""What a trace or a check on GPUs showed of a machine: host overheads, products, collectives.

All of it is used by prices: overheads by the host of a step (``step.durations.host_of``), products
and collectives by ``planner.prices``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.hardware.quantity import Bytes, Count, FlopRate, Number, Seconds


@dataclass(frozen=True, slots=True)
class Overheads:
    """What the host spends around one kind of operator (arXiv 2201.07821, there T1 to T5).

    ``between`` lies before it since the operator in front of it, ``before`` from its start to its
    first launch, ``after`` from its last launch to its end, ``launch`` is one call that launches,
    ``inside`` lies between two of them.
    """

    count: Count
    between: Seconds
    before: Seconds
    after: Seconds
    launch: Seconds
    inside: Seconds


@dataclass(frozen=True, slots=True)
class Products:
    """How fast matrices of one dtype were multiplied, in flop/s.

    ``share`` is what they took over what they are priced at on the machine of the catalogue, the
    median over all of them: by which products of the dtype are priced from then on.
    """

    count: Count
    median: FlopRate
    best: FlopRate
    share: Number = 1.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """How long a collective of one size took to move its bytes."""

    kind: str
    nbytes: Bytes
    ranks: Count
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Recorded:
    """All of it: overheads by operator (``all``: of every one), products by dtype."""

    host: Mapping[str, Overheads] = field(default_factory=dict, hash=False)
    products: Mapping[str, Products] = field(default_factory=dict, hash=False)
    collectives: tuple[Exchange, ...] = ()
