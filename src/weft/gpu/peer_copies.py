"""Execution of a Schedule's copies on side streams, by one process that sees all devices.

Not yet run on hardware (see device_streams.py). Commands of queues and lanes become copies on
streams of their own, flags become events. Everything is issued by the calling thread, which waits
only at the end. torch has no copy that waits for memory, so what is prelaunched is issued when it
is released.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from weft.errors import DeadlockError, ScheduleError, UsageError
from weft.gpu.copy_threads import CopyThread, Events, copy_threads
from weft.gpu.device_streams import DeviceStreams, streams_for
from weft.schedule import (
    Broadcast,
    Command,
    CommandLocation,
    Copy,
    Launch,
    Schedule,
    Scope,
    Signal,
    Submit,
    Swap,
    Wait,
)
from weft.schedule.values import as_int

Tensors = Mapping[tuple[int, str], Tensor]


class PeerCopies:
    """A Schedule of copies, prepared for its tensors; ``run`` does it, again and again."""

    def __init__(
        self, schedule: Schedule, tensors: Tensors, *, streams: DeviceStreams | None = None
    ) -> None:
        self.schedule = schedule
        self.tensors = dict(_checked(schedule, tensors))
        devices = [tensor.device for tensor in self.tensors.values()]
        self.streams = streams or streams_for(devices)
        self._threads = list(copy_threads(schedule))
        for thread in self._threads:
            if thread.queue != "host":
                thread.stream = self.streams.stream(self._device(thread.rank))
        self._fed = {
            (command.rank, command.queue)
            for thread in self._threads
            for _, command, _ in thread.commands
            if isinstance(command, Submit)
        }

    def _device(self, rank: int) -> torch.device:
        mine = [tensor.device for (owner, _), tensor in self.tensors.items() if owner == rank]
        return mine[0] if mine else torch.device("cpu")

    def run(self) -> None:
        """Issue every copy in an order that the flags allow, and wait until all have landed.

        Copies begin behind what the current streams were given before: kernels that are still
        writing what is to be copied.
        """
        self._raised: dict[Any, list[Events]] = defaultdict(list)
        self._handed: dict[Any, list[tuple[int, Any, Events]]] = defaultdict(list)
        before = self.streams.produced([tensor.device for tensor in self.tensors.values()])
        for thread in self._threads:
            thread.reset()
            if thread.stream is not None:
                self._wait(thread, tuple(before))
        left = self._threads
        while left:
            moved = [self._advance(thread) for thread in left]
            if not any(moved):
                stuck = [t.commands[t.next][0] for t in left if not t.done][:4]
                raise DeadlockError(
                    f"{len(left)} queues can never go on: "
                    f"{'; '.join(f'{p.queue}@{p.rank} #{p.id}' for p in stuck)}.",
                    "Every Wait needs that many Signals that do not themselves wait on it.",
                )
            left = [thread for thread in left if not thread.done]
        for thread in self._threads:
            if thread.stream is not None:
                self.streams.finish(thread.stream)

    def _advance(self, thread: CopyThread) -> bool:
        """Issue what can be issued of a thread; False where nothing can."""
        before = thread.next, thread.joining
        while thread.started and not thread.done and self._may(thread):
            copies = self._run_of_copies(thread)
            if len(copies) > 1:
                self._copy(thread, copies)
                thread.next += len(copies)
            elif self._issue(thread, thread.commands[thread.next]):
                thread.next += 1
            else:
                break
        return (thread.next, thread.joining) != before

    def _may(self, thread: CopyThread) -> bool:
        """Return whether the next command was submitted and its flag raised; wait for both."""
        _, command, fed = thread.commands[thread.next]
        if (thread.rank, thread.queue) in self._fed and fed >= 0:
            events = self._handed_over(thread, fed)
            if events is None:
                return False
            self._wait(thread, events)
        if isinstance(command, Wait):
            return self._seen(command.flag, as_int(command.count)) is not None
        return True

    def _handed_over(self, thread: CopyThread, fed: int) -> Events | None:
        for count, hold, events in self._handed[thread.rank, thread.queue]:
            if fed < count:
                held = () if hold is None else self._seen(hold, 1)
                return None if held is None else (*events, *held)
            fed -= count
        return None

    def _seen(self, flag: Any, count: int) -> Events | None:
        """Return the events of the first ``count`` signals of a flag, None before they exist."""
        raised = self._raised[flag.rank, flag.index]
        if len(raised) < count:
            return None
        return tuple(event for events in raised[:count] for event in events)

    def _wait(self, thread: CopyThread, events: Events) -> None:
        if thread.stream is None:
            thread.carried = (*thread.carried, *events)
        else:
            for event in events:
                self.streams.wait(thread.stream, event)

    def _knows(self, thread: CopyThread) -> Events:
        """Return the events of everything that a thread issued and waited for."""
        if thread.stream is None:
            return thread.carried
        return (self.streams.record(thread.stream),)

    def _issue(self, thread: CopyThread, row: tuple[CommandLocation, Command, int]) -> bool:
        place, command, _ = row
        match command:
            case Copy() | Broadcast():
                self._copy(thread, [command])
            case Swap(a, b):
                self._swap(thread, self._at(a), self._at(b))
            case Signal(flag):
                self._raised[flag.rank, flag.index].append(self._knows(thread))
            case Wait(flag, count):
                self._wait(thread, self._seen(flag, as_int(count)) or ())
            case Submit(rank, queue, count, hold):
                handed = (as_int(count), hold, self._knows(thread))
                self._handed[rank, queue].append(handed)
            case Launch():
                return self._launch(thread, thread.lanes[place.id])
            case Scope():
                pass
            case _:
                what = type(command).__name__
                raise ScheduleError(
                    f"{place.queue}@{place.rank} #{place.id}: a {what} is no copy.",
                    "Only schedules of copies can be done by streams.",
                )
        return True

    def _launch(self, thread: CopyThread, lanes: list[CopyThread]) -> bool:
        """Start the lanes behind the thread, and go on behind all of them."""
        if not thread.joining:
            thread.joining = True
            for lane in lanes:
                lane.started = True
                self._wait(lane, self._knows(thread))
        if not all(lane.done for lane in lanes):
            return False
        for lane in lanes:
            self._wait(thread, self._knows(lane))
        thread.joining = False
        return True

    def _run_of_copies(self, thread: CopyThread) -> list[Copy]:
        """Return consecutive copies that were submitted together."""
        found: list[Copy] = []
        fed_by_host = (thread.rank, thread.queue) in self._fed
        for _, command, fed in thread.commands[thread.next :]:
            if not isinstance(command, Copy):
                break
            if fed_by_host and self._handed_over(thread, fed) is None:
                break
            found.append(command)
        return found

    def _at(self, where: Any) -> Tensor:
        return self.tensors[where.rank, where.buffer].narrow(0, where.offset, where.nbytes)

    def _copy(self, thread: CopyThread, copies: Sequence[Copy | Broadcast]) -> None:
        """Pass all copies to torch at once: it batches those that its runtime can."""
        pairs = [
            (self._at(dst), self._at(copy.src))
            for copy in copies
            for dst in (copy.dsts if isinstance(copy, Broadcast) else (copy.dst,))
        ]
        dsts, srcs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        devices = tuple(dict.fromkeys(tensor.device for tensor in (*srcs, *dsts)))

        def work() -> None:
            torch._foreach_copy_(dsts, srcs, non_blocking=True)

        self.streams.issue(thread.stream, devices, work)

    def _swap(self, thread: CopyThread, a: Tensor, b: Tensor) -> None:
        def work() -> None:
            kept = a.clone()
            a.copy_(b, non_blocking=True)
            b.copy_(kept, non_blocking=True)

        self.streams.issue(thread.stream, (a.device, b.device), work)


def _checked(schedule: Schedule, tensors: Tensors) -> Iterator[tuple[tuple[int, str], Tensor]]:
    """Return the tensor of every buffer; missing scratch is allocated on its rank's device."""
    for buffer in schedule.buffers:
        for rank in range(schedule.num_ranks):
            nbytes, given = buffer.size_on(rank), tensors.get((rank, buffer.name))
            if given is None and (buffer.role == "scratch" or nbytes == 0):
                near = [t.device for (owner, _), t in tensors.items() if owner == rank]
                device = near[0] if near else torch.device("cpu")
                given = torch.empty(nbytes, dtype=torch.uint8, device=device)
            if given is None:
                raise UsageError(
                    f"{schedule.name} needs {buffer.name} of rank {rank}, {nbytes} bytes.",
                    "Give a uint8 tensor for every rank and buffer.",
                )
            if given.dtype != torch.uint8 or given.shape != (nbytes,) or not given.is_contiguous():
                raise UsageError(
                    f"{buffer.name} of rank {rank} is {tuple(given.shape)} of {given.dtype}, not "
                    f"{nbytes} bytes in a row.",
                    "Use tensor.view(torch.uint8).view(-1) of a contiguous tensor.",
                )
            yield (rank, buffer.name), given
