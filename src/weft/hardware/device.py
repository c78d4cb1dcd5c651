"""One accelerator as data: units, memory, launch costs, DMA engines and watts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.errors import PlatformError, nearest
from weft.hardware.measured import KernelFit, OpCostModel
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
    """The copy engines of a device: what each stage of a command takes, and what they can do.

    A command passes ``control``, ``doorbell``, ``fetch``, ``start``, its bytes, ``drain``, ``sync``
    and ``observe``, in this order.
    """

    num_engines: Few
    engine_rate: Rate
    control: Seconds  # of the host, for each command
    doorbell: Seconds  # of the host, for each submission
    fetch: Seconds  # of the engine, for each submission
    start: Seconds  # of the engine, for each packet, before its bytes leave
    sync: Seconds  # until a completion stands in the host's memory
    packet_bytes: Bytes  # a longer copy is several packets
    # Once before a signal that follows copies: until the last of them is known to have landed.
    # Copies back to back do not wait for that.
    drain: Seconds = 0.0
    observe: Seconds = 0.0  # of the host, for each completion that it looks at, one after another
    # A copy behind one of another source waits this long for its first bytes; behind one of the
    # same source they are there.
    other_source: Seconds = 0.0
    # What an engine writes in sum to the two destinations of a broadcast, and while it swaps two
    # buffers, which are two streams that share nothing that is read.
    paired_rate: RatedRate = None
    swap_rate: RatedRate = None
    host_engines: Few = 1  # more of them, for copies from and to the host
    # Through the runtime the host pays for each copy, or for each of many in one call, what MI300X
    # takes: the only device it was published for. Copies of more than ``small_copy`` bytes wait for
    # each other there, and each takes ``large_start`` before its bytes leave.
    call: Seconds = 5.5e-6
    batched_call: Seconds = 2.6e-6
    small_copy: Bytes = 16 << 10
    large_start: Seconds = 7.26e-6
    # What a library of the device carries out by engines inside a node. Engines copy and do not
    # add: a reduction is listed only where a library adds by a kernel behind their copies.
    collectives: tuple[str, ...] = _COPYING
    # How engines can be fed beyond one copy at a time, by the names of algorithms: ``b2b`` (copies
    # back to back on one engine), ``bcst`` (one source, two destinations), ``swap`` (two buffers
    # exchanged), ``prelaunch`` (commands that wait on the engine for a flag).
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

    The defaults serve devices that were not measured next to collectives: those of MI300X where
    they were fitted, and the caches of H100.
    """

    # These bound the workgroups on a unit.
    local_bytes: Bytes = 228 << 10  # scratch (shared) memory
    register_bytes: Bytes = 256 << 10
    unit_threads: Few = 2048
    lanes: Few = 128  # of a unit: threads whose instruction it starts in a cycle
    cluster: Few = 1  # workgroups of a product that share what they load of one operand
    clock: Number = 1.5  # of the units at most, in GHz
    # The L2 is ``l2_slices`` caches that do not share, and gives ``l2_rate`` in all.
    l2_slices: Few = 2
    l2_ways: Few = 16
    l2_rate: Rate = 5.5e12
    live_steps: Number = 1.2  # steps of a GEMM's loop whose cache lines are still to be used again
    overcommit: Number = 1.5  # requests that a GEMM keeps in flight, over those that fill memory
    load_latency: Number = 0.65  # under full load a request takes 1 + this times as long
    # Share of the slots that come free for a kernel behind one with more workgroups than fit.
    dispatch_share: Number = 0.02
    # A product at its sustained rate has all watts that the device may draw. Of what traffic of
    # others draws it gives up this share, in clock; 0: clocks stay.
    clock_coupling: Number = 1.0
    held_watts: Number = 0.0  # of a unit that a collective holds, over those of one that computes
    # How often what a collective kernel brings passes the receiver's memory, beyond one write.
    staging: Number = 2.0
    pieces: Few = 1  # in which tiles are handed out; more than one only to ask what waves cost
    # Units with which a collective kernel fills the links; None: ``unit_copy_rate`` says so.
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
    """Ranks that are cores of one memory: what they achieve by working set and by dtype."""

    streamed_from: Bytes  # size from which copies go past the caches
    far_rate: Rate  # what one core reads from the memory of another process
    yield_latency: Seconds  # until a thread that yields instead of spinning sees a flag
    sets: Mapping[str, WorkingSet] = field(hash=False)
    reduces: Mapping[str, Reducing] = field(hash=False)
    # Up to so many bytes of its input a rank is faster to lay them out in shared memory than to be
    # read; the second where elements are reduced. 0: not measured.
    eager_up_to: Bytes = 0
    eager_reduced_up_to: Bytes = 0


@dataclass(frozen=True, slots=True)
class Lookups:
    """What lookups in one embedding table take on a core that was measured, in seconds."""

    start: Seconds = 0.0  # whatever the size
    bag: Seconds = 0.0
    bag_byte: Seconds = 0.0
    lookup: Seconds = 0.0
    lookup_byte: Seconds = 0.0  # of a row
    # More for rows in the last cache; in the backward pass, for gradients of bags that are there.
    outer_row: Seconds = 0.0
    outer_byte: Seconds = 0.0
    # More for rows that come from memory or, in the backward pass, are changed there.
    memory_row: Seconds = 0.0
    memory_byte: Seconds = 0.0
    alone: Seconds = 0.0  # more again for such a row among others: the core waits for it
    page: Seconds = 0.0  # for every page that is visited
    leaf: Seconds = 0.0  # for every line of the page tables, which has the entries of eight pages
    # The caches that it was fitted with.
    inner_bytes: Bytes = 512 << 10
    outer_bytes: Bytes = 32 << 20
    error: Number = 0.0  # geometric mean of the relative errors
    floor: Number = 0.0  # how far single measurements lie from their median


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator. Rates without ``rated`` in their name are what software achieves."""

    __repr__ = brief

    name: str
    title: str
    vendor: str
    units: Few  # SMs of NVIDIA, compute units of AMD
    unit_grain: Few  # the smallest step of a mask
    unit_copy_rate: Rate  # what one unit moves in a collective kernel
    memory_rate: Rate  # reads and writes together: a copy inside the memory moves half of it
    memory_rated: Rate
    memory_bytes: Bytes
    l2_bytes: Bytes
    last_level_bytes: Bytes
    launch: Seconds  # on the device, before a kernel starts
    host_launch: Seconds  # on the host, to launch it
    signal: Seconds  # of a flag that the device raises, beyond the link's latency
    release: Seconds  # from a store of the host until a waiting engine goes on
    flops: Mapping[str, Flops] = field(hash=False)
    power: Power
    dma: Dma | None = None
    shared: Cores | None = None  # where ranks are cores of one memory and were measured as such
    kernels: Kernels = Kernels()
    # What embedding tables take where they were measured, by who looks up: ``torch``, ``weft``, and
    # the same with ``_backward``.
    lookups: Mapping[str, Lookups] = field(default_factory=dict, hash=False)
    op_models: tuple[OpCostModel, ...] = ()  # what ops of torch take on a core
    fits: tuple[KernelFit, ...] = ()  # its kernels where a sweep measured them
    # The device whose fitted kernels and curves of libraries stand in, scaled by the datasheets of
    # both, where this one was not measured.
    like: str = ""

    @property
    def is_core(self) -> bool:
        """Whether it is one core of a CPU, whose host is itself."""
        return self.units == 1

    def op_model(self, family: str) -> OpCostModel | None:
        """Return the cost model of a family of ops on one thread, if it was measured here."""
        same = (m for m in self.op_models if (m.family, m.threads) == (family, 1))
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
