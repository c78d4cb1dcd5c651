"""The queues and lanes of a Schedule of copies, with their issue state."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from weft.schedule import Command, CommandLocation, Schedule, expand
from weft.schedule.schedule import commands_of

Events = tuple[Any, ...]


@dataclass(slots=True)
class CopyThread:
    """A queue or a lane: its commands and how far they are issued."""

    rank: int
    queue: str
    is_lane: bool
    commands: list[tuple[CommandLocation, Command, int]] = field(default_factory=list)
    lanes: dict[int, list["CopyThread"]] = field(default_factory=lambda: defaultdict(list))
    stream: Any = None
    carried: Events = ()  # a host's: what it knows to have been issued
    next: int = 0
    started: bool = False
    joining: bool = False

    @property
    def done(self) -> bool:
        """Whether all of it is issued."""
        return self.next == len(self.commands)

    def reset(self) -> None:
        """Reset to the start; a lane waits for its launch."""
        self.carried, self.next, self.started, self.joining = (), 0, not self.is_lane, False


def copy_threads(schedule: Schedule) -> Iterator[CopyThread]:
    """Return the queues and lanes of all ranks; launches know their lanes."""
    table = expand(schedule)
    rows = list(commands_of(table))
    threads = [
        CopyThread(int(rank), table.queues[queue], is_lane=bool(launch >= 0))
        for rank, queue, launch in zip(
            table.thread_rank, table.thread_queue, table.thread_launch, strict=True
        )
    ]
    for (place, command), thread, fed in zip(rows, table.thread, table.fed, strict=True):
        threads[thread].commands.append((place, command, int(fed)))
    for thread, launch in zip(threads, table.thread_launch, strict=True):
        if launch >= 0:
            threads[table.thread[launch]].lanes[rows[launch][0].id].append(thread)
    return iter(threads)
