"""A host thread that sends what a fused kernel put into its outbox, and takes what others send.

A kernel cannot reach a rank on another node by a store. It writes a descriptor into a queue in
memory that the host sees; this thread sends the slice through torch.distributed, and the thread of
the receiver lays it down and raises the flag that a store inside a node would have raised.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from weft.errors import RunTimeoutError
from weft.fused.triton_device import FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

_LOOK = 50e-6  # seconds between looks at an empty queue


@dataclass
class Outbox:
    """The queue of descriptors of one kernel: room for ``capacity`` slices."""

    capacity: int
    queue: torch.Tensor = field(init=False)
    tail: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.queue = torch.zeros((self.capacity, FIELDS), dtype=torch.int32)
        self.tail = torch.zeros(1, dtype=torch.int32)

    def entry(self, number: int) -> tuple[int, int] | None:
        """Rank and slice of a descriptor; None where there is none yet.

        The kernel writes the first field last, with release; a plain read of it by this thread
        comes after what it publishes on the memory models of the hosts that GPUs have.
        """
        there, rank, part = self.queue[number].tolist()
        return (rank, part) if there else None


def send_slices(
    outbox: Outbox,
    count: int,
    slice_of: Callable[[int, int], torch.Tensor],
    *,
    timeout: float,
) -> None:
    """Send ``count`` slices as the kernel publishes them, ``slice_of(rank, part)`` each.

    The number of the slice goes ahead of it. Every wait ends after ``timeout`` seconds.
    """
    works: list[dist.Work | None] = []
    kept: list[torch.Tensor] = []  # until it is sent
    for number in range(count):
        rank, part = _next(outbox, number, timeout)
        kept += (torch.tensor([part]), slice_of(rank, part).contiguous())
        works += (dist.isend(tensor, rank) for tensor in kept[-2:])
    for work in works:
        if work is not None:
            work.wait()


def _next(outbox: Outbox, number: int, timeout: float) -> tuple[int, int]:
    deadline = time.monotonic() + timeout
    while (found := outbox.entry(number)) is None:
        if time.monotonic() > deadline:
            raise RunTimeoutError(
                f"slice {number} of a fused kernel timed out: it was not made in {timeout:g} s.",
                "Look at the kernel: it may have failed, or make fewer slices than it should.",
            )
        time.sleep(_LOOK)
    return found


def take_slices(
    sender: int, count: int, place_of: Callable[[int], torch.Tensor], flag: torch.Tensor
) -> None:
    """Take ``count`` slices of ``sender``, lay each where it belongs and raise ``flag``."""
    number = torch.zeros(1, dtype=torch.int64)
    for _ in range(count):
        dist.recv(number, sender)
        place = place_of(int(number.item()))
        arriving = torch.empty(place.shape, dtype=place.dtype)
        dist.recv(arriving, sender)
        place.copy_(arriving)
        flag += 1


def in_background(work: Callable[[], None]) -> Callable[[], None]:
    """Start ``work`` in a thread; what is returned waits for it and raises what it raised."""
    failed: list[BaseException] = []

    def carried_out() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the caller raises it
            failed.append(error)

    thread = threading.Thread(target=carried_out, daemon=True)
    thread.start()

    def finish() -> None:
        thread.join()
        if failed:
            raise failed[0]

    return finish
