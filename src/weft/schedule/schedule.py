"""The Schedule: programs of ranks, and the commands they expand to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from weft.schedule.inline import inline
from weft.schedule.ir import (
    Broadcast,
    Buffer,
    Command,
    Copy,
    Decode,
    Encode,
    Flag,
    Kernel,
    Launch,
    Program,
    Reduce,
    Scope,
    Signal,
    Slice,
    Submit,
    Swap,
    Wait,
    count_stored,
)
from weft.schedule.table import CommandTable, expand
from weft.units import brief


class CommandLocation(NamedTuple):
    """The location of a command; the lane is -1 outside a Launch."""

    rank: int
    queue: str
    lane: int
    id: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Programs of ranks, the buffers they access, and the number of flags that each rank owns.

    ``ratios`` states by codec which compression ratio the simulator assumes: bytes in per byte out.
    """

    __repr__ = brief

    name: str
    num_ranks: int
    programs: tuple[Program, ...]
    buffers: tuple[Buffer, ...] = ()
    num_flags: int = 0
    ratios: tuple[tuple[str, float], ...] = ()

    @property
    def num_stored(self) -> int:
        """The number of commands that the compact form stores, including those of calls."""
        return sum(count_stored(queue.commands) for p in self.programs for queue in p.queues)

    def commands(
        self, ranks: Sequence[int] | None = None
    ) -> Iterator[tuple[CommandLocation, Command]]:
        """Yield every command with its relative values resolved, rank by rank, queue by queue.

        Lazy: one rank is expanded at a time. A Launch and a call come without what they contain,
        which follows.
        """
        flat = inline(self)
        for rank in range(self.num_ranks) if ranks is None else ranks:
            yield from commands_of(expand(flat, [rank]))


def commands_of(table: CommandTable) -> Iterator[tuple[CommandLocation, Command]]:
    """Yield the command of each row of ``table``, with its location."""
    buffers = table.buffers
    slices = [
        Slice(rank, buffers[buffer], offset, nbytes)
        for rank, buffer, offset, nbytes in zip(
            table.access_rank.tolist(),
            table.access_buffer.tolist(),
            table.access_offset.tolist(),
            table.access_nbytes.tolist(),
            strict=True,
        )
    ]
    flags = zip(table.flag_rank.tolist(), table.flag_index.tolist(), strict=True)
    starts = table.access_start.tolist()
    rows = zip(
        table.command.tolist(),
        table.thread.tolist(),
        table.id.tolist(),
        flags,
        table.count.tolist(),
        table.target_rank.tolist(),
        strict=True,
    )
    for row, (number, thread, ident, flag, count, target) in enumerate(rows):
        queue = table.queues[table.thread_queue[thread]]
        lane = int(table.thread_lane[thread])
        place = CommandLocation(int(table.thread_rank[thread]), queue, lane, ident)
        mine = slices[starts[row] : starts[row + 1]]
        yield place, _resolved(table.commands[number], mine, Flag(*flag), count, target)


def _resolved(  # noqa: C901, PLR0911 - one case a command
    command: Command, slices: list[Slice], flag: Flag, count: int, target: int
) -> Command:
    """Return ``command`` with the numbers of one row in place of its relative values."""
    match command:
        case Copy():
            return Copy(slices[0], slices[1])
        case Signal():
            return Signal(flag)
        case Wait():
            return Wait(flag, count)
        case Broadcast():
            return Broadcast(slices[0], tuple(slices[1:]))
        case Swap():
            return Swap(slices[0], slices[1])
        case Reduce():
            return replace(command, srcs=tuple(slices[:-1]), dst=slices[-1])
        case Encode() | Decode():
            return replace(command, src=slices[0], dst=slices[1])
        case Kernel():
            num_reads = len(command.reads)
            return replace(
                command, reads=tuple(slices[:num_reads]), writes=tuple(slices[num_reads:])
            )
        case Submit():
            return Submit(target, command.queue, count, flag if command.hold else None)
        case Launch():
            return replace(command, lanes=())
        case Scope():
            return replace(command, body=(), enter=(), leave=())
        case _:
            raise AssertionError(command)
