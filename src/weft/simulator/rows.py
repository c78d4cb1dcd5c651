"""A CommandTable with the platform that it is priced on, and the ranks that stand for others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from weft.errors import ScheduleError
from weft.hardware import Device, Dma, Platform
from weft.schedule import (
    WRITE,
    Command,
    CommandTable,
    Decode,
    Encode,
    Kernel,
    Queue,
    Schedule,
    queue_kind,
)
from weft.schedule.rank_symmetry import BOTH, ROTATE, Symmetry, find_symmetry, no_symmetry
from weft.timeline import MOVES

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

C = TypeVar("C", bound="Command")


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows to be priced, and columns that several prices need."""

    table: CommandTable
    platform: Platform
    symmetry: Symmetry
    rank: Ints
    thread_kind: NDArray[np.str_]  # host, stream, copy or nic
    queue_kind: NDArray[np.str_]  # the same by row
    in_lane: Bools
    moves: Bools  # rows that move data
    opaque: Floats  # seconds of kernels that nothing else is known of, zero elsewhere

    @classmethod
    def of(cls, table: CommandTable, platform: Platform, symmetry: Symmetry) -> Rows:
        """Look up what is asked of every row."""
        kinds = np.array([queue_kind(name) for name in table.queues] or [""])
        thread_kind = kinds[table.thread_queue]
        return cls(
            table,
            platform,
            symmetry,
            rank=table.thread_rank[table.thread].astype(np.int64),
            thread_kind=thread_kind,
            queue_kind=thread_kind[table.thread],
            in_lane=table.thread_lane[table.thread] >= 0,
            moves=np.isin(table.kind, MOVES),
            opaque=_opaque(table),
        )

    @property
    def device(self) -> Device | None:
        """What every rank is; None on a bare network."""
        return self.platform.device

    @property
    def ranks(self) -> Ints:
        """The ranks that have commands, in order."""
        return np.unique(self.table.thread_rank).astype(np.int64)

    @property
    def by_engine(self) -> Bools:
        """Rows that a DMA engine carries out."""
        on_copy: Bools = self.queue_kind == "copy"
        return self.moves & on_copy

    @property
    def num_writes(self) -> Ints:
        """To how many places each row writes."""
        written = np.concatenate(([0], np.cumsum((self.table.access_mode & WRITE) > 0)))
        return np.diff(written[self.table.access_start])

    def dma(self) -> Dma:
        """Return the engines that rows on copy queues need."""
        return self.platform.require_device().require_dma()

    def kernels(self) -> Iterator[tuple[Kernel, Queue, Ints]]:
        """Yield each stored kernel that is priced by what it does, with its queue and its rows."""
        return self._found(Kernel, lambda kernel: not kernel.cost.seconds)

    def coded(self) -> Iterator[tuple[Encode | Decode, Ints]]:
        """Yield each stored command that encodes or decodes, and its rows."""
        for encode, _, mine in self.of_kind(Encode):
            yield encode, mine
        for decode, _, mine in self.of_kind(Decode):
            yield decode, mine

    def of_kind(self, kind: type[C]) -> Iterator[tuple[C, Queue, Ints]]:
        """Yield each stored command of one kind, with its queue and its rows."""
        return self._found(kind, lambda _: True)

    def _found(self, kind: type[C], wants: Callable[[C], bool]) -> Iterator[tuple[C, Queue, Ints]]:
        table = self.table
        wanted = [n for n, c in enumerate(table.commands) if isinstance(c, kind) and wants(c)]
        rows = np.flatnonzero(np.isin(table.command, wanted))
        rows = rows[np.argsort(table.command[rows], kind="stable")]
        starts = np.flatnonzero(np.diff(table.command[rows], prepend=-1))
        for mine in np.split(rows, starts[1:]) if len(rows) else ():
            command = table.commands[table.command[mine[0]]]
            if isinstance(command, kind):
                decl = table.thread_decl[table.thread[mine[0]]]
                yield command, table.thread_queue_of[decl], mine


def _opaque(table: CommandTable) -> Floats:
    """Return the seconds of each row that is a kernel of known seconds."""
    seconds = [c.cost.seconds if isinstance(c, Kernel) else 0.0 for c in table.commands]
    out: Floats = np.array([*seconds, 0.0])[table.command]
    return out


def masked_units(queue: Queue, device: Device) -> int:
    """Return how many units of a device the commands of a queue may use."""
    first, last = queue.units or (0, device.units)
    if not 0 <= first < last <= device.units:
        raise ScheduleError(
            f"{queue.name} is confined to units {first} up to {last}; {device.name} has "
            f"{device.units}.",
            f"A mask goes from a first unit up to a later one, at most {device.units}.",
        )
    return last - first


# A ring looks the same when turned; a switch and a full mesh under any exchange of ranks.
_ACTIONS = {"ring": frozenset((ROTATE,)), "switch": BOTH, "mesh": BOTH}


def platform_symmetry(schedule: Schedule, platform: Platform, *, collapse: bool) -> Symmetry:
    """Return how the schedule collapses on this platform, with one coordinate for each level."""
    dims = tuple(level.size for level in platform.levels)
    if not collapse:
        return no_symmetry(dims)
    return find_symmetry(schedule, dims, (_ACTIONS[level.kind] for level in platform.levels))


def alike_in_node(platform: Platform, symmetry: Symmetry) -> int:
    """Return how many ranks of its node a simulated rank stands for, itself included."""
    levels = list(zip(symmetry.dims, symmetry.actions, strict=True))[: platform.node_levels]
    return prod(dim for dim, action in levels if action)
