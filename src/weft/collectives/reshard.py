"""Resharding: a tensor that is sharded over some ranks becomes sharded otherwise over others.

Every destination reads the part that it needs straight from a rank that holds it: one Copy for
each pair of ranks whose parts overlap, whatever the two meshes are.

    source: Shard(0) on ranks 0, 1        destination: Shard(1) on ranks 2, 3, 4
    ┌─────────┐ 0                         ┌──┬──┬──┐
    ├─────────┤                   ──▶     │ 2│ 3│ 4│        6 copies
    └─────────┘ 1                         └──┴──┴──┘
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from weft.collectives.parts import launched, own, signal, wait
from weft.errors import UsageError
from weft.schedule import Buffer, Copy, Program, Schedule, Slice

READY, DONE = 0, 1


class Box(NamedTuple):
    """A part of a tensor: the first index of every dimension, and the one behind the last."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its dimensions."""
        return tuple(stop - start for start, stop in zip(self.start, self.stop, strict=True))

    @property
    def num_elements(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def intersection(self, other: Box) -> Box:
        """Return what both contain; it may be empty."""
        start = tuple(map(max, self.start, other.start))
        stop = tuple(map(min, self.stop, other.stop))
        return Box(start, tuple(map(max, start, stop)))

    def within(self, outer: Box) -> Box:
        """Return this box relative to the first element of ``outer``."""
        start = tuple(a - b for a, b in zip(self.start, outer.start, strict=True))
        stop = tuple(a - b for a, b in zip(self.stop, outer.start, strict=True))
        return Box(start, stop)

    def offset_in(self, outer: Box) -> int | None:
        """Return the position of the first element in ``outer``, None if not contiguous there."""
        relative, shape = self.within(outer), self.shape
        partial = [d for d, size in enumerate(outer.shape) if shape[d] != size]
        if partial and math.prod(shape[: partial[-1]]) != 1:
            return None
        offset = 0
        for first, size in zip(relative.start, outer.shape, strict=True):
            offset = offset * size + first
        return offset


@dataclass(frozen=True, slots=True)
class TensorSharding:
    """A mesh of ranks, and for each of its dimensions the tensor dimension it shards.

    ``placements`` has an int for Shard(dim) and None for Replicate, as DTensor has them; parts are
    those of ``torch.chunk``. ``ranks`` are in the order of the mesh, last dimension fastest.
    """

    ranks: tuple[int, ...]
    mesh: tuple[int, ...]
    placements: tuple[int | None, ...]

    def box(self, position: int, shape: tuple[int, ...]) -> Box:
        """Return the part of the rank at a position of the mesh."""
        start, stop = [0] * len(shape), list(shape)
        stride = len(self.ranks)
        for size, dim in zip(self.mesh, self.placements, strict=True):
            stride //= size
            if dim is None:
                continue
            here = position // stride % size
            each = -(-(stop[dim] - start[dim]) // size)  # as torch.chunk: the last ones are shorter
            first = min(start[dim] + here * each, stop[dim])
            start[dim], stop[dim] = first, min(first + each, stop[dim])
        return Box(tuple(start), tuple(stop))

    def boxes(self, shape: tuple[int, ...]) -> dict[int, Box]:
        """Return the parts by rank."""
        return {rank: self.box(position, shape) for position, rank in enumerate(self.ranks)}

    def require_valid(self, what: str, num_ranks: int, shape: tuple[int, ...]) -> None:
        """Raise if ranks, mesh, placements and shape do not fit together."""
        if len(set(self.ranks)) != len(self.ranks) or not self.ranks:
            raise UsageError(f"{what}: expected different ranks (got {self.ranks}).")
        if not all(0 <= rank < num_ranks for rank in self.ranks):
            raise UsageError(
                f"{what}: expected ranks from 0 to {num_ranks - 1} (got {self.ranks}).",
                "Use the ranks of the group that contains both meshes.",
            )
        if math.prod(self.mesh) != len(self.ranks) or len(self.mesh) != len(self.placements):
            raise UsageError(
                f"{what}: expected a placement for each dimension of a mesh of {len(self.ranks)} "
                f"ranks (got mesh {self.mesh}, placements {self.placements})."
            )
        if not all(dim is None or 0 <= dim < len(shape) for dim in self.placements):
            raise UsageError(
                f"{what}: expected dimensions from 0 to {len(shape) - 1} (got {self.placements})."
            )


class ShardTransfer(NamedTuple):
    """A part of the tensor that one rank reads from another, with its place in their buffers."""

    source: int
    destination: int
    box: Box
    source_offset: int
    destination_offset: int


@dataclass(frozen=True)
class ReshardPlan:
    """Which rank reads what from whom, and where it stands in the buffers ``in`` and ``out``.

    A rank whose parts are not all contiguous in its shard has them one after another in its
    buffer: it packs its input, or unpacks its output. The others use their shards as they are.
    """

    num_ranks: int
    shape: tuple[int, ...]
    source: TensorSharding
    destination: TensorSharding

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.shape):
            raise UsageError(f"shape: expected sizes of at least 0 (got {self.shape}).")
        for what, sharding in (("source", self.source), ("destination", self.destination)):
            sharding.require_valid(what, self.num_ranks, self.shape)

    @cached_property
    def source_boxes(self) -> dict[int, Box]:
        """What the sources hold."""
        return self.source.boxes(self.shape)

    @cached_property
    def destination_boxes(self) -> dict[int, Box]:
        """What the destinations get."""
        return self.destination.boxes(self.shape)

    @cached_property
    def packed(self) -> frozenset[int]:
        """The sources that pack."""
        return frozenset(
            a for a, _, box in self._pairs if box.offset_in(self.source_boxes[a]) is None
        )

    @cached_property
    def unpacked(self) -> frozenset[int]:
        """The destinations that unpack."""
        return frozenset(
            b for _, b, box in self._pairs if box.offset_in(self.destination_boxes[b]) is None
        )

    @cached_property
    def transfers(self) -> tuple[ShardTransfer, ...]:
        """All transfers, in the order of destinations, then of sources."""
        found = []
        used_in, used_out = dict.fromkeys(range(self.num_ranks), 0), dict[int, int]()
        for a, b, box in self._pairs:
            at = box.offset_in(self.source_boxes[a])
            to = box.offset_in(self.destination_boxes[b])
            if a in self.packed:
                at, used_in[a] = used_in[a], used_in[a] + box.num_elements
            if b in self.unpacked:
                to = used_out.get(b, 0)
                used_out[b] = to + box.num_elements
            assert at is not None
            assert to is not None
            found.append(ShardTransfer(a, b, box, at, to))
        return tuple(found)

    def buffer_count(self, rank: int, *, sends: bool) -> int:
        """Return the elements of a rank's buffer."""
        boxes, packed = (
            (self.source_boxes, self.packed) if sends else (self.destination_boxes, self.unpacked)
        )
        if rank not in packed:
            return boxes[rank].num_elements if rank in boxes else 0
        return sum(
            t.box.num_elements for t in self.transfers if (t.source if sends else t[1]) == rank
        )

    def schedule(self, item_bytes: int) -> Schedule:
        """Build the Schedule: destinations read from sources, which leave when all have read."""
        ranks = range(self.num_ranks)
        programs = []
        for me in ranks:
            reads = [t for t in self.transfers if t.destination == me]
            readers = sorted({t[1] for t in self.transfers if t.source == me and t[1] != me})
            sources = sorted({t.source for t in reads if t.source != me})
            copies = tuple(self._copy(each, item_bytes) for each in reads)
            items = (
                *(signal(rank, READY) for rank in readers),
                *((wait(READY, len(sources)),) if sources else ()),
                *copies,
                *(signal(rank, DONE) for rank in sources),
                *((wait(DONE, len(readers)),) if readers else ()),
            )
            if items:
                programs.append(Program((me,), (launched(items),)))
        sizes = [
            tuple(item_bytes * self.buffer_count(rank, sends=sends) for rank in ranks)
            for sends in (True, False)
        ]
        buffers = (Buffer("in", sizes[0], "in"), Buffer("out", sizes[1], "out"))
        return Schedule("reshard", self.num_ranks, tuple(programs), buffers, 2)

    @staticmethod
    def _copy(transfer: ShardTransfer, item_bytes: int) -> Copy:
        nbytes = transfer.box.num_elements * item_bytes
        source = Slice(transfer.source, "in", transfer.source_offset * item_bytes, nbytes)
        return Copy(source, own("out", transfer.destination_offset * item_bytes, nbytes))

    @cached_property
    def _pairs(self) -> tuple[tuple[int, int, Box], ...]:
        """Source, destination and part of every transfer.

        Of several ranks that hold the same part, a destination reads its own, else those take
        turns.
        """
        holders: dict[Box, list[int]] = {}
        for rank, box in self.source_boxes.items():
            if box.num_elements:
                holders.setdefault(box, []).append(rank)
        found = []
        for turn, (rank, wanted) in enumerate(self.destination_boxes.items()):
            for held, ranks in holders.items():
                box = held.intersection(wanted)
                if box.num_elements:
                    source = rank if rank in ranks else ranks[turn % len(ranks)]
                    found.append((source, rank, box))
        return tuple(found)
