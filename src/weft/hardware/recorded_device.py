"""What a trace showed of a machine beyond its numbers: host overheads, rates, collectives."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.hardware.quantity import Bytes, Count, FlopRate, Number, Rate, Seconds


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
    """How fast matrices of one dtype were multiplied, in flop/s."""

    count: Count
    median: FlopRate
    best: FlopRate


@dataclass(frozen=True, slots=True)
class Copies:
    """How fast copies of one direction went."""

    count: Count
    median: Rate
    best: Rate


@dataclass(frozen=True, slots=True)
class Exchange:
    """How long a collective of one size took to move its bytes."""

    kind: str
    nbytes: Bytes
    ranks: Count
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class Recorded:
    """All of it. ``slowdowns``: how many times as long kernels take next to communication."""

    host: Mapping[str, Overheads] = field(default_factory=dict, hash=False)
    products: Mapping[str, Products] = field(default_factory=dict, hash=False)
    copies: Mapping[str, Copies] = field(default_factory=dict, hash=False)
    collectives: tuple[Exchange, ...] = ()
    slowdowns: Mapping[str, "Slowdown"] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How many times as long kernels of a family take next to communication."""

    count: Count
    median: Number
    weighted: Number
