"""Lowers the copy queues of a Schedule to packets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from weft.errors import ScheduleError, UsageError
from weft.gpu.sdma import packets as sdma
from weft.gpu.sdma.packets import BROADCAST_ALIGNMENT
from weft.gpu.sdma.words import COUNT_BITS, encode
from weft.schedule import Broadcast, Copy, Scope, Signal, Submit, Swap, Wait, expand
from weft.schedule.schedule import commands_of
from weft.schedule.values import as_int

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from weft.schedule import Command, CommandLocation, Schedule

    Key = tuple[int, str]  # a rank and its queue
    Row = tuple[CommandLocation, Command, int]  # with the number by which a Submit counts it, or -1

FLAG_BYTES = 8
SWAP_ALIGNMENT = 64  # bytes, of both addresses on gfx94x (AMD's open runtime, 2026)
PACKET_LIMITS = {"gfx90a": 1 << 22, "gfx94x": (1 << 30) - 1}  # bytes of one packet, as ROCr cuts
_NO_MORE = 1 << 62  # commands of the last batch: all that are left


@dataclass(frozen=True, slots=True)
class PacketBatch:
    """The packets that one Submit hands over; if held, the first one is the poll."""

    packets: tuple[sdma.Packet, ...]

    def encoded(self, count_bits: int = COUNT_BITS[0]) -> list[bytes]:
        """Return the encoded bytes of each packet."""
        return [encode(packet, count_bits=count_bits) for packet in self.packets]


@dataclass(frozen=True, slots=True)
class Lowering:
    """The target of the lowering: addresses, and the capabilities of the engines.

    ``buffers`` holds the address of each rank's buffers, ``flags`` that of each rank's first flag,
    eight bytes each. ``base`` counts the signals that flags received before this execution. With
    ``interrupts`` the host gets an interrupt for completions it waits for, otherwise it polls.
    ``packet_bytes`` is the most that one packet moves (``PACKET_LIMITS``), ``swap_alignment`` that
    of both addresses of a swap: 64 on gfx94x, 1 where engines swap single bytes.
    """

    buffers: Mapping[tuple[int, str], int]
    flags: Mapping[int, int]
    packet_bytes: int = 1 << COUNT_BITS[0]
    num_engines: int | None = None
    base: Mapping[tuple[int, int], int] = field(default_factory=dict)
    interrupts: bool = False
    swap_alignment: int = SWAP_ALIGNMENT

    def __post_init__(self) -> None:
        most = 1 << COUNT_BITS[-1]
        if not 1 <= self.packet_bytes <= most:
            raise UsageError(
                f"packet_bytes is {self.packet_bytes}, expected 1 to {most}.", f"Use 1 to {most}."
            )
        if self.swap_alignment < 1:
            raise UsageError(
                f"swap_alignment is {self.swap_alignment}, expected at least 1.",
                "Use 64 on gfx94x.",
            )

    def address(self, where: Any) -> int:
        """Return the address of the first byte of a slice."""
        return self.buffers[where.rank, where.buffer] + int(where.offset)

    def flag(self, flag: Any) -> int:
        """Return the address of a flag."""
        return self.flags[flag.rank] + FLAG_BYTES * int(flag.index)

    def poll(self, flag: Any, count: int) -> sdma.PollPacket:
        """Return a poll until a flag has received ``count`` signals in this execution."""
        value = self.base.get((flag.rank, flag.index), 0) + count
        return sdma.PollPacket(self.flag(flag), value & 0xFFFFFFFF)

    def pieces(self, nbytes: int, alignment: int = 1) -> Iterator[tuple[int, int]]:
        """Yield offset and size of the packets that ``nbytes`` take, at aligned offsets."""
        most = self.packet_bytes // alignment * alignment
        if not most:
            raise UsageError(
                f"packet_bytes is {self.packet_bytes}, too few for a swap at multiples of "
                f"{alignment} bytes.",
                f"Use {alignment} or more.",
            )
        for offset in range(0, nbytes, most):
            yield offset, min(most, nbytes - offset)


def lower(schedule: Schedule, lowering: Lowering) -> dict[tuple[int, str], list[PacketBatch]]:
    """Return the packets of every copy queue, one batch per Submit, in order.

    A queue without a Submit is one batch, submitted from the start.
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
                f"{queue}@{rank} needs engine {queue.removeprefix('copy')}, but the device has "
                f"{lowering.num_engines} (numbered from 0).",
                "Use an algorithm with fewer copy queues, such as dma-b2b.",
            )


def _batches(
    rows: list[Row], submits: list[Submit], lowering: Lowering, looked_at: set[Any]
) -> list[PacketBatch]:
    """Split the commands of a queue by the counts of its Submits."""
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
                    f"{place.queue}@{place.rank} #{place.id} is not handed over by any Submit.",
                    "Make the counts of its Submits add up to all of its commands.",
                )
        found[number].extend(_packets(place, command, lowering, looked_at))
    return [PacketBatch(tuple(packets)) for packets in found]


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
            yield from _swaps(place, lowering, a, b)
        case Signal(flag):
            yield sdma.AtomicAddPacket(lowering.flag(flag), 1)
            if lowering.interrupts and (flag.rank, flag.index) in looked_at:
                yield sdma.TrapPacket()
        case Wait(flag, count):
            yield lowering.poll(flag, as_int(count))
        case Scope():
            pass
        case _:
            raise ScheduleError(
                f"{place.queue}@{place.rank} #{place.id}: copy engines cannot execute a "
                f"{type(command).__name__}.",
                "Put it on a stream.",
            )


def _copies(lowering: Lowering, src: Any, dsts: tuple[Any, ...]) -> Iterator[sdma.Packet]:
    """Yield packets with one read and one or two writes, as many as the size needs.

    Destinations that a broadcast packet cannot pair are two copies.
    """
    start, ends = lowering.address(src), [lowering.address(dst) for dst in dsts]
    if len(ends) == 2 and (ends[0] - ends[1]) % BROADCAST_ALIGNMENT:
        for dst in dsts:
            yield from _copies(lowering, src, (dst,))
        return
    for offset, size in lowering.pieces(int(src.nbytes)):
        if len(ends) == 1:
            yield sdma.CopyPacket(start + offset, ends[0] + offset, size)
        else:
            yield sdma.BroadcastPacket(start + offset, (ends[0] + offset, ends[1] + offset), size)


def _swaps(place: CommandLocation, lowering: Lowering, a: Any, b: Any) -> Iterator[sdma.Packet]:
    one, other = lowering.address(a), lowering.address(b)
    for address in (one, other):
        if a.nbytes and address % lowering.swap_alignment:
            raise ScheduleError(
                f"{place.queue}@{place.rank} #{place.id}: cannot swap at address {address:#x} "
                f"(expected a multiple of {lowering.swap_alignment}).",
                "Align buffers and shares, or use an algorithm without swaps, such as dma-b2b.",
            )
    for offset, size in lowering.pieces(as_int(a.nbytes), lowering.swap_alignment):
        yield sdma.SwapPacket(one + offset, other + offset, size)
