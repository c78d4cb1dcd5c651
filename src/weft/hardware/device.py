"""One accelerator as data: units, memory, launch costs, DMA engines and watts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.errors import PlatformError, nearest
from weft.hardware.measured import KernelFit, OpLaw
from weft.hardware.quantity import (
    Bytes,
    Few,
    FewOrNone,
    FlopRate,
    JoulesPerByte,
    Number,
    Rate,
    RatedRate,
    Seconds,
    Watts,
)
from weft.units import brief


@dataclass(frozen=True, slots=True)
class Flops:
    """How fast a device multiplies matrices of one dtype, in flop/s."""

    achieved: FlopRate
    rated: FlopRate


_COPYING = ("all_gather", "all_to_all", "broadcast", "gather", "scatter")
_ADDING = ("reduce_scatter", "all_reduce", "reduce")
_FEATURES = ("b2b", "bcst", "swap", "prelaunch")


@dataclass(frozen=True, slots=True)
class Dma:
    """The copy engines of a device and what one command costs around its bytes.

    A command passes ``control`` (host, per command), ``doorbell`` (host, per submission), ``fetch``
    (engine, per submission), ``start`` (engine, per packet, before its bytes leave), the bytes,
    ``drain`` (engine, once before a signal that follows copies: until the last of them is known
    to have landed, which copies back to back do not wait for), ``sync`` (until the completion
    stands in the host's memory) and ``observe`` (host, per completion that it looks at, one after
    another). A copy of more than ``packet_bytes`` is several packets. A copy behind one of another
    source waits ``other_source`` for its first bytes; behind one of the same source they are there.
    ``paired_rate`` is what an engine writes in sum while a broadcast has two destinations,
    ``swap_rate`` while a swap exchanges two buffers: two streams that do not share what is read.

    ``collectives`` are those that a library of the device carries out by engines inside a node;
    engines copy and do not add, so a reduction is there only where a library adds by a kernel
    behind their copies. ``features`` are the ways to feed them beyond one copy at a time, by their
    names in algorithms: ``b2b`` (copies back to back on one engine), ``bcst`` (one source, two
    destinations), ``swap`` (two buffers exchanged), ``prelaunch`` (commands that wait on the
    engine for a flag).

    ``host_engines`` more serve copies from and to the host. Through the runtime the host pays
    ``call`` for a copy or, for each of many in one call, ``batched_call``: what MI300X takes, the
    only device it was published for. Copies of more than ``small_copy`` bytes wait for each other
    there: each takes ``large_start`` before its bytes leave.
    """

    num_engines: Few
    engine_rate: Rate
    control: Seconds
    doorbell: Seconds
    fetch: Seconds
    start: Seconds
    sync: Seconds
    packet_bytes: Bytes
    drain: Seconds = 0.0
    observe: Seconds = 0.0
    other_source: Seconds = 0.0
    paired_rate: RatedRate = None
    swap_rate: RatedRate = None
    host_engines: Few = 1
    call: Seconds = 5.5e-6
    batched_call: Seconds = 2.6e-6
    small_copy: Bytes = 16 << 10
    large_start: Seconds = 7.26e-6
    collectives: tuple[str, ...] = _COPYING
    features: tuple[str, ...] = ("b2b",)

    def __post_init__(self) -> None:
        known = {"collectives": (*_COPYING, *_ADDING), "features": _FEATURES}
        for key, names in known.items():
            for name in getattr(self, key):
                if name not in names:
                    raise PlatformError(
                        f"dma.{key} names {name!r}, which weft does not know", nearest(name, names)
                    )

    @property
    def turning(self) -> float:
        """How many times as long a byte takes an engine that writes to two destinations."""
        return self.engine_rate / (self.paired_rate or self.engine_rate)

    @property
    def swapping(self) -> float:
        """How many times as long a byte takes an engine that exchanges two buffers."""
        return self.engine_rate / (self.swap_rate or self.engine_rate)


@dataclass(frozen=True, slots=True)
class Kernels:
    """How kernels run on the units, next to each other and to copies.

    ``local_bytes`` of scratch memory, ``register_bytes`` and ``unit_threads`` of a unit bound the
    workgroups on it; ``clock`` is that of its units at most, in GHz; ``cluster`` workgroups of a
    product share what they load of one operand.
    The L2 is ``l2_slices`` caches of ``l2_ways`` ways that do not share, and gives ``l2_rate`` in
    all; a workgroup of a GEMM has the cache lines of ``live_steps`` steps of its loop to be used
    again. ``overcommit``: a GEMM keeps that many times the requests in flight that fill the
    memory. ``load_latency``: under full load a request takes 1 + that many times as long as on an
    idle device. ``dispatch_share`` of the slots that come free go to a kernel that was launched
    behind one with more workgroups than fit. ``clock_coupling``: a product at its sustained rate
    has all watts that the device may draw; of what traffic of others draws it gives up this share,
    in clock (0: clocks stay). ``held_watts``: what a unit that a collective kernel holds draws, in
    what one that computes draws. ``staging``: how often what a collective kernel
    brings passes the receiver's memory beyond being written once. ``pieces``: tiles are handed
    out in so many; more than one only to ask what waves cost. The ``.._units`` are those with
    which a collective kernel fills the links; where they are not known, what a unit moves says so.

    The defaults serve devices that nobody measured next to collectives: those of MI300X where
    they were fitted, and the caches of H100.
    """

    local_bytes: Bytes = 228 << 10
    register_bytes: Bytes = 256 << 10
    unit_threads: Few = 2048
    cluster: Few = 1
    clock: Number = 1.5
    l2_slices: Few = 2
    l2_ways: Few = 16
    l2_rate: Rate = 5.5e12
    live_steps: Number = 1.2
    overcommit: Number = 1.5
    load_latency: Number = 0.65
    dispatch_share: Number = 0.02
    clock_coupling: Number = 1.0
    held_watts: Number = 0.0
    staging: Number = 2.0
    pieces: Few = 1
    all_gather_units: FewOrNone = None
    all_to_all_units: FewOrNone = None
    reduce_scatter_units: FewOrNone = None
    all_reduce_units: FewOrNone = None
    broadcast_units: FewOrNone = None

    def units_of(self, collective: str) -> int | None:
        """Return the units with which the kernel of ``collective`` fills the links, if known."""
        found: int | None = getattr(self, f"{collective}_units", None)
        return found


@dataclass(frozen=True, slots=True)
class Power:
    """Watts at rest, per busy unit and engine; joules per byte of memory and link traffic.

    ``active`` watts come on top while any kernel is there: clocks rise and caches wake, however
    few units are busy. Copies by engines leave them at rest.
    """

    idle: Watts
    unit: Watts
    engine: Watts
    memory_byte: JoulesPerByte
    link_byte: JoulesPerByte
    active: Watts = 0.0


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """How fast a core moves bytes when its rank has so many in use: caches make the difference.

    Bytes written per second, by one core alone and by each of two at once (``_both``): copies
    through the caches and past them, and sums of two sources of float32.
    """

    cached: Rate
    cached_both: Rate
    streamed: Rate
    streamed_both: Rate
    reduced: Rate
    reduced_both: Rate


@dataclass(frozen=True, slots=True)
class Reducing:
    """How fast a core adds up elements of one dtype, in bytes written per second."""

    rate: Rate


@dataclass(frozen=True, slots=True)
class Cores:
    """Ranks that are cores of one memory: what they achieve by working set and by dtype.

    ``streamed_from`` is the size from which copies go past the caches, ``far_rate`` what one
    core reads from the memory of another process, ``yield_latency`` what a flag takes to be seen
    by a thread that yields instead of spinning. Up to ``eager_up_to`` bytes of a rank's input it
    is faster to lay them out in shared memory than to be read, where elements are joined up to
    ``eager_reduced_up_to``; 0: nobody measured it.
    """

    streamed_from: Bytes
    far_rate: Rate
    yield_latency: Seconds
    sets: Mapping[str, WorkingSet] = field(hash=False)
    reduces: Mapping[str, Reducing] = field(hash=False)
    eager_up_to: Bytes = 0
    eager_reduced_up_to: Bytes = 0


@dataclass(frozen=True, slots=True)
class Lookups:
    """What lookups in one embedding table take on a core that was measured, in seconds.

    ``start`` whatever the size; for a bag, and for each byte of it; for a lookup, and for each
    byte of its row; more for rows found in the last cache (``outer``; in the backward pass,
    gradients of bags found there), and for those that come from ``memory`` or, in the backward
    pass, are changed there, and more again where such a row is ``alone`` among others, so that the
    core waits for it; for every ``page`` that is visited, and every ``leaf`` of the page tables
    (those of eight pages stand in one line).
    ``inner_bytes`` and ``outer_bytes`` are the caches that it was fitted with, ``error`` the
    geometric mean of its relative errors, ``floor`` how far single measurements lie from their
    median.
    """

    start: Seconds = 0.0
    bag: Seconds = 0.0
    bag_byte: Seconds = 0.0
    lookup: Seconds = 0.0
    lookup_byte: Seconds = 0.0
    outer_row: Seconds = 0.0
    outer_byte: Seconds = 0.0
    memory_row: Seconds = 0.0
    memory_byte: Seconds = 0.0
    alone: Seconds = 0.0
    page: Seconds = 0.0
    leaf: Seconds = 0.0
    inner_bytes: Bytes = 512 << 10
    outer_bytes: Bytes = 32 << 20
    error: Number = 0.0
    floor: Number = 0.0


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. Rates without ``rated`` in their name are what software achieves.

    ``unit_grain`` units are the smallest step of a mask. ``unit_copy_rate`` is what one unit moves
    in a collective kernel. ``memory_rate`` counts reads and writes together, so a copy inside the
    memory moves half of it. ``launch`` passes on the device before a kernel starts, ``host_launch``
    on the host to launch it. ``signal`` is what a flag raised by the device costs beyond the
    link's latency; ``release`` passes from a store of the host until a waiting engine goes on.
    ``shared`` is there where ranks are cores of one memory and were measured as such. ``lookups``
    has what embedding tables take where they were, by who looks up: ``torch``, ``weft``, and the
    same with ``_backward``; ``laws`` what ops of torch take; ``fits`` its kernels
    where a sweep measured them. ``like`` names the device whose fitted
    kernels and curves of libraries stand in, scaled by the datasheets of both, where this one was
    not measured.
    """

    __repr__ = brief

    name: str
    title: str
    vendor: str
    units: Few
    unit_grain: Few
    unit_copy_rate: Rate
    memory_rate: Rate
    memory_rated: Rate
    memory_bytes: Bytes
    l2_bytes: Bytes
    last_level_bytes: Bytes
    launch: Seconds
    host_launch: Seconds
    signal: Seconds
    release: Seconds
    flops: Mapping[str, Flops] = field(hash=False)
    power: Power
    dma: Dma | None = None
    shared: Cores | None = None
    kernels: Kernels = Kernels()
    lookups: Mapping[str, Lookups] = field(default_factory=dict, hash=False)
    laws: tuple[OpLaw, ...] = ()
    fits: tuple[KernelFit, ...] = ()
    like: str = ""

    @property
    def is_core(self) -> bool:
        """Whether it is one core of a CPU, whose host is itself."""
        return self.units == 1

    def law(self, family: str) -> OpLaw | None:
        """Return the law of a family of ops on one thread, if it was measured here."""
        same = (law for law in self.laws if (law.family, law.threads) == (family, 1))
        return next(same, None)

    def engine_refusal(self, collective: str) -> str:
        """Return why the copy engines do not carry out a collective, "" where they do."""
        if self.dma is None:
            return f"{self.title} has no DMA engines"
        if collective in self.dma.collectives:
            return ""
        why = "no library does it by them"
        if collective in _ADDING:
            why = "they copy, they do not add, and no library adds behind them"
        known = ", ".join(self.dma.collectives) or "nothing"
        return f"copy engines of {self.title} do no {collective}: {why} (they do {known})"

    def feature_refusal(self, features: tuple[str, ...]) -> str:
        """Return why the copy engines lack some features, "" where they have them."""
        if self.dma is None:
            return f"{self.title} has no DMA engines"
        missing = [feature for feature in features if feature not in self.dma.features]
        return f"copy engines of {self.title} have no {', '.join(missing)}" if missing else ""

    def require_dma(self) -> Dma:
        """Return the copy engines, for work that cannot do without them."""
        if self.dma is None:
            raise PlatformError(
                f"{self.name} has no DMA engines",
                "Use an algorithm that copies by compute units, such as direct or ring.",
            )
        return self.dma
