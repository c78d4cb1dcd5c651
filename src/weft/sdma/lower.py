"""The copy queues of a Schedule as packets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft.errors import ScheduleError, UsageError
from weft.schedule import Broadcast, Copy, Scope, Signal, Submit, Swap, Wait, expand
from weft.schedule.schedule import commands_of
from weft.schedule.values import as_int
from weft.sdma import packets as sdma
from weft.sdma.words import COUNT_BITS, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weft.schedule import Command, CommandLocation, Schedule

    Key = tuple[int, str]  # a rank and its queue
    Row = tuple[CommandLocation, Command, int]  # with the number by which a Submit counts it, or -1

FLAG_BYTES = 8
_NO_MORE = 1 << 62  # commands of the last batch: whatever is left


@dataclass(frozen=True, slots=True)
class Batch:
    """What one Submit hands over; a held one begins with the poll that holds it."""

    packets: tuple[sdma.Packet, ...]

    def encoded(self, count_bits: int = COUNT_BITS[0]) -> list[bytes]:
        """The bytes of each packet."""
        return [encode(packet, count_bits=count_bits) for packet in self.packets]


@dataclass(frozen=True, slots=True)
class Lowering:
    """How a Schedule becomes packets: where things lie, and what the engines can take.

    ``buffers`` gives the address of each rank's buffers, ``flags`` that of each rank's first flag,
    eight bytes each. ``base`` counts the signals that a flag had before this execution. With
    ``interrupts`` the host is told of completions that it waits for, otherwise it looks.
    """

    buffers: Mapping[tuple[int, str], int]
    flags: Mapping[int, int]
    packet_bytes: int = 1 << COUNT_BITS[0]
    num_engines: int | None = None
    base: Mapping[tuple[int, int], int] = field(default_factory=dict)
    interrupts: bool = False

    def __post_init__(self) -> None:
        most = 1 << COUNT_BITS[-1]
        if not 1 <= self.packet_bytes <= most:
            raise UsageError(
                f"no engine takes packets of {self.packet_bytes} bytes.", f"Use 1 to {most}."
            )

    def address(self, where: Any) -> int:
        """The first byte of a slice."""
        return self.buffers[where.rank, where.buffer] + int(where.offset)

    def flag(self, flag: Any) -> int:
        """Where a flag lies."""
        return self.flags[flag.rank] + FLAG_BYTES * int(flag.index)

    def poll(self, flag: Any, count: int) -> sdma.Poll:
        """Hold until a flag has had ``count`` signals more than before this execution."""
        value = self.base.get((flag.rank, flag.index), 0) + count
        return sdma.Poll(self.flag(flag), value & 0xFFFFFFFF)

    def pieces(self, nbytes: int) -> Iterator[tuple[int, int]]:
        """Offset and size of the packets that so many bytes take."""
        for offset in range(0, nbytes, self.packet_bytes):
            yield offset, min(self.packet_bytes, nbytes - offset)


def lower(schedule: Schedule, lowering: Lowering) -> dict[tuple[int, str], list[Batch]]:
    """The packets of every copy queue, one Batch for each Submit that feeds it, in their order.

    A queue that no Submit names is one Batch, to be announced from the start.
    """
    table = expand(schedule)
    rows = [
        (place, command, fed)
        for (place, command), fed in zip(commands_of(table), table.fed.tolist(), strict=True)
    ]
    submits: dict[Key, list[Submit]] = {}
    queues: dict[Key, list[Row]] = {}
    for row in rows:
        place, command, _ = row
        if isinstance(command, Submit):
            submits.setdefault((as_int(command.rank), command.queue), []).append(command)
        if place.queue.startswith("copy"):
            queues.setdefault((place.rank, place.queue), []).append(row)
    looked_at = {
        (command.flag.rank, command.flag.index)
        for place, command, _ in rows
        if isinstance(command, Wait) and place.queue == "host"
    }
    _check_engines(queues, lowering)
    return {
        key: _batches(mine, submits.get(key, []), lowering, looked_at)
        for key, mine in queues.items()
    }


def _check_engines(queues: Mapping[Key, object], lowering: Lowering) -> None:
    if lowering.num_engines is None:
        return
    for rank, queue in queues:
        if int(queue.removeprefix("copy")) >= lowering.num_engines:
            raise UsageError(
                f"{queue}@{rank} needs engine {queue.removeprefix('copy')}; the device has "
                f"{lowering.num_engines}, numbered from 0.",
                "Use an algorithm with fewer copy queues, such as dma-b2b.",
            )


def _batches(
    rows: list[Row], submits: list[Submit], lowering: Lowering, looked_at: set[Any]
) -> list[Batch]:
    """Cut the commands of a queue where the counts of its Submits end."""
    limits, total = [], 0
    for submit in submits:
        total += as_int(submit.count)
        limits.append(total)
    limits = limits or [_NO_MORE]
    found: list[list[sdma.Packet]] = [
        [lowering.poll(submit.hold, 1)] if submit.hold is not None else [] for submit in submits
    ] or [[]]
    number = 0
    for place, command, fed in rows:
        while fed >= limits[number]:
            number += 1
            if number == len(limits):
                raise ScheduleError(
                    f"{place.queue}@{place.rank} #{place.id} is handed over by no Submit.",
                    "Let the counts of its Submits add up to all of its commands.",
                )
        found[number].extend(_packets(place, command, lowering, looked_at))
    return [Batch(tuple(packets)) for packets in found]


def _packets(
    place: CommandLocation, command: Command, lowering: Lowering, looked_at: set[Any]
) -> Iterator[sdma.Packet]:
    match command:
        case Copy(src, dst):
            yield from _copies(lowering, src, (dst,))
        case Broadcast(src, dsts):
            for first in range(0, len(dsts), 2):
                yield from _copies(lowering, src, dsts[first : first + 2])
        case Swap(a, b):
            for offset, size in lowering.pieces(as_int(a.nbytes)):
                yield sdma.Swap(lowering.address(a) + offset, lowering.address(b) + offset, size)
        case Signal(flag):
            yield sdma.AtomicAdd(lowering.flag(flag), 1)
            if lowering.interrupts and (flag.rank, flag.index) in looked_at:
                yield sdma.Trap()
        case Wait(flag, count):
            yield lowering.poll(flag, as_int(count))
        case Scope():
            pass
        case _:
            raise ScheduleError(
                f"{place.queue}@{place.rank} #{place.id}: engines copy, they cannot do a "
                f"{type(command).__name__}.",
                "Let a stream do it.",
            )


def _copies(lowering: Lowering, src: Any, dsts: tuple[Any, ...]) -> Iterator[sdma.Packet]:
    """One read, one or two writes, in as many packets as the bytes take."""
    start, ends = lowering.address(src), [lowering.address(dst) for dst in dsts]
    for offset, size in lowering.pieces(int(src.nbytes)):
        if len(ends) == 1:
            yield sdma.Copy(start + offset, ends[0] + offset, size)
        else:
            yield sdma.Broadcast(start + offset, (ends[0] + offset, ends[1] + offset), size)
