"""Fused operators as schedules, and the same work as a kernel followed by a collective.

A fused operator is one persistent kernel: one lane computes slice after slice, and one lane per
peer sends that peer's slices (a store inside a node, a put with a flag between nodes), all on the
compute units of one Launch. Remote slices come first, so that the last slices a rank computes are
its own (arXiv 2305.06942).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.collectives import direct
from weft.collectives.parts import in_place, own, schedule_of, signal, to_all, wait
from weft.errors import UsageError
from weft.schedule import (
    SELF,
    Buffer,
    Copy,
    Cost,
    Flag,
    Group,
    Index,
    Kernel,
    Launch,
    Program,
    Queue,
    Reduce,
    Rel,
    Repeat,
    Schedule,
    Signal,
    Slice,
    Term,
    Wait,
    shifted,
)

if TYPE_CHECKING:
    from weft.collectives.parts import Items

READY, ARRIVED, REDUCED, DONE, MADE = 0, 1, 2, 3, 4  # from MADE on, one flag per peer
STREAM = "stream0"


@dataclass(frozen=True, slots=True)
class Sliced:
    """The work of one rank: ``slices`` slices for every rank, including itself.

    ``cost`` is that of a rank's whole work, ``nbytes`` the size of all its slices together.
    """

    name: str
    num_ranks: int
    slices: int
    cost: Cost
    nbytes: int

    def __post_init__(self) -> None:
        if self.num_ranks < 2 or self.slices < 1:
            raise UsageError(
                f"{self.name}: cannot fuse {self.num_ranks} ranks with {self.slices} slices each.",
                "Use two ranks or more, and at least one slice per rank.",
            )
        if self.nbytes % (self.num_ranks * self.slices):
            raise UsageError(
                f"{self.name}: {self.nbytes} bytes cannot be divided into {self.slices} slices "
                f"for each of {self.num_ranks} ranks.",
                "Choose another number of slices.",
            )

    @property
    def slice_bytes(self) -> int:
        """The size of one slice in bytes."""
        return self.nbytes // (self.num_ranks * self.slices)

    def part(self, *, occupancy: float = 1.0) -> Cost:
        """Return the cost of one slice in a kernel with reduced occupancy.

        Work in flight hides the latencies of arithmetic and memory alike: with a fraction
        ``occupancy`` of it in flight, the kernel takes longer by the inverse.
        """
        share = 1 / (self.num_ranks * self.slices * occupancy)
        whole = self.cost
        return replace(
            whole,
            shape=(),
            flops=whole.flops * share,
            nbytes=round(whole.nbytes * share),
            tiles=max(1, whole.tiles // (self.num_ranks * self.slices)),
        )


def fused_all_to_all(
    work: Sliced, *, units: int, remote_first: bool = True, occupancy: float = 1.0
) -> Schedule:
    """Build a fused all-to-all: each slice is sent to its rank as soon as it is computed.

    Without ``remote_first``, slices are computed in rank order.
    """
    n, name = work.num_ranks, f"fused {work.name} + all_to_all"
    peer, place = shifted(Group(n), 1, 1), _by_sender(work)
    lane = (
        wait(READY, n - 1),
        Repeat(
            work.slices,
            (
                _until_made(),
                Copy(_made(work), Slice(peer, "out", place, work.slice_bytes)),
                signal(peer, ARRIVED),
            ),
        ),
    )
    ending = (wait(ARRIVED, (n - 1) * work.slices),)
    buffers = (_scratch(work), Buffer("out", work.nbytes, "out"))
    if remote_first:
        make: Items = (_make_remote(work, occupancy), _make_own(work, "out", place, occupancy))
        queues = _launched((to_all(Group(n), READY), *make, *ending), Repeat(n - 1, lane), units)
        return schedule_of(name, n, queues, buffers, MADE + n - 1)
    programs = []
    for rank in range(n):
        make = _in_order(work, rank, occupancy)
        queues = _launched((to_all(Group(n), READY), *make, *ending), Repeat(n - 1, lane), units)
        programs.append(Program((rank,), queues))
    return Schedule(name, n, tuple(programs), buffers, MADE + n - 1)


def fused_all_reduce(work: Sliced, *, units: int, dtype: str = "uint8") -> Schedule:
    """Build a fused all-reduce: each rank computes summands of the whole result, remote ones first.

    The slices for a rank are the summands of its part of the result. It reduces them and writes the
    sums to all ranks, in the same kernel.
    """
    n, name = work.num_ranks, f"fused {work.name} + all_reduce"
    group = Group(n)
    peer, part = shifted(group, 1, 1), work.nbytes // n
    slot = Rel(0, (part, work.slice_bytes))
    mine = Slice(SELF, "data", Rel(terms=(Term(Index(group), part),)), part)
    lane = (
        wait(READY, n - 1),
        Repeat(
            work.slices,
            (
                _until_made(),
                Copy(_made(work), Slice(peer, "slots", slot, work.slice_bytes)),
                signal(peer, ARRIVED),
            ),
        ),
        wait(REDUCED),
        Copy(mine, Slice(peer, "data", mine.offset, part)),
        signal(peer, DONE),
    )
    first: Items = (
        to_all(group, READY),
        _make_remote(work),
        _make_own(work, "data", _by_sender(work)),
        wait(ARRIVED, (n - 1) * work.slices),
        Reduce((mine, *(own("slots", k * part, part) for k in range(n - 1))), mine, dtype),
        signal(SELF, REDUCED),
        wait(DONE, n - 1),
    )
    buffers = (in_place(work.nbytes), _scratch(work), Buffer("slots", part * (n - 1)))
    return schedule_of(name, n, _launched(first, Repeat(n - 1, lane), units), buffers, MADE + n - 1)


def apart_all_to_all(work: Sliced, *, units: int | None = None) -> Schedule:
    """Build the computation, a library's all_to_all, and a reordering of the result.

    The exchange leaves one block per sender. Layers need one row per sample, which a fused operator
    writes directly; here it takes a kernel that reads and writes everything.
    """
    inner = direct.all_to_all(work.num_ranks, work.nbytes)
    rows = Kernel("shuffle", Cost("copy", nbytes=2 * work.nbytes))
    return _one_after_another(work, inner, f"{work.name}, then all_to_all", units, (rows,))


def apart_all_reduce(work: Sliced, *, units: int | None = None, dtype: str = "uint8") -> Schedule:
    """Build the computation followed by a library's all_reduce."""
    inner = direct.all_reduce(work.num_ranks, work.nbytes, dtype=dtype)
    return _one_after_another(work, inner, f"{work.name}, then all_reduce", units)


def _one_after_another(
    work: Sliced, inner: Schedule, name: str, units: int | None, after: tuple[Kernel, ...] = ()
) -> Schedule:
    (program,) = inner.programs
    (queue,) = program.queues
    (launch,) = queue.commands
    assert isinstance(launch, Launch)
    library = replace(launch, units=units, workgroups=units)
    commands: Items = (Kernel(work.name, work.cost), library, *after)
    queues = (Queue(STREAM, commands),)
    return replace(inner, name=name, programs=(Program(program.ranks, queues),))


def _launched(first: Items, others: Repeat, units: int) -> tuple[Queue, ...]:
    return (Queue(STREAM, (Launch((first, others), units=units, workgroups=units),)),)


def _scratch(work: Sliced) -> Buffer:
    return Buffer("made", work.slice_bytes * work.slices * (work.num_ranks - 1))


def _by_sender(work: Sliced) -> Rel:
    """Return the offset of slice k of a rank at its receiver: after those of lower ranks."""
    block = work.slices * work.slice_bytes
    return Rel(0, (0, work.slice_bytes), (Term(Index(Group(work.num_ranks)), block),))


def _made(work: Sliced) -> Slice:
    """Return slice k (inner loop) for the peer at distance j + 1 (outer loop)."""
    return own("made", Rel(0, (work.slices * work.slice_bytes, work.slice_bytes)), work.slice_bytes)


def _until_made() -> Wait:
    return Wait(Flag(SELF, Rel(MADE, (1,))), Rel(1, (0, 1)))


def _make_remote(work: Sliced, occupancy: float = 1.0) -> Repeat:
    """Return the computation of the slices for the next rank, then the one after it, and so on."""
    kernel = Kernel(work.name, work.part(occupancy=occupancy), writes=(_made(work),))
    done = Signal(Flag(SELF, Rel(MADE, (1,))))
    return Repeat(work.num_ranks - 1, (Repeat(work.slices, (kernel, done)),))


def _make_own(work: Sliced, buffer: str, place: Rel, occupancy: float = 1.0) -> Repeat:
    at = replace(place, steps=place.steps[1:])
    kernel = Kernel(
        work.name,
        work.part(occupancy=occupancy),
        writes=(Slice(SELF, buffer, at, work.slice_bytes),),
    )
    return Repeat(work.slices, (kernel,))


def _in_order(work: Sliced, rank: int, occupancy: float) -> Items:
    """Return the computation of the slices in rank order, as seen from one rank."""
    n, size = work.num_ranks, work.slice_bytes
    kernel = Kernel(work.name, work.part(occupancy=occupancy))
    items: Items = ()
    for target in range(n):
        distance = (target - rank) % n
        if distance == 0:
            items += (_make_own(work, "out", _by_sender(work), occupancy),)
            continue
        made = own("made", Rel((distance - 1) * work.slices * size, (size,)), size)
        done = Signal(Flag(SELF, MADE + distance - 1))
        items += (Repeat(work.slices, (replace(kernel, writes=(made,)), done)),)
    return items
