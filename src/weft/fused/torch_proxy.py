"""A proxy thread that sends what a fused kernel puts into its outbox, and receives from others.

A kernel cannot store to a rank on another node. It writes a descriptor into a queue in host-visible
memory. This thread sends the slice through torch.distributed; the receiver's thread stores it and
sets the flag that a store inside a node would have set.
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

_LOOK = 50e-6  # seconds between polls of an empty queue


@dataclass
class Outbox:
    """The queue of descriptors of one kernel, with room for ``capacity`` slices."""

    capacity: int
    queue: torch.Tensor = field(init=False)
    tail: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.queue = torch.zeros((self.capacity, FIELDS), dtype=torch.int32)
        self.tail = torch.zeros(1, dtype=torch.int32)

    def entry(self, number: int) -> tuple[int, int] | None:
        """Return rank and slice of a descriptor, or None if it is not written yet.

        The kernel writes the first field last, with release. On the memory models of GPU hosts, a
        plain read of it by this thread is ordered before reads of what it publishes.
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
    """Send ``count`` slices as the kernel publishes them, each ``slice_of(rank, part)``.

    The number of the slice is sent first. Every wait ends after ``timeout`` seconds.
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
                f"slice {number} of a fused kernel timed out after {timeout:g} s.",
                "Check the kernel: it may have failed, or produce fewer slices than expected.",
            )
        time.sleep(_LOOK)
    return found


def take_slices(
    sender: int, count: int, place_of: Callable[[int], torch.Tensor], flag: torch.Tensor
) -> None:
    """Receive ``count`` slices from ``sender``, store each and increment ``flag``."""
    number = torch.zeros(1, dtype=torch.int64)
    for _ in range(count):
        dist.recv(number, sender)
        place = place_of(int(number.item()))
        arriving = torch.empty(place.shape, dtype=place.dtype)
        dist.recv(arriving, sender)
        place.copy_(arriving)
        flag += 1


def in_background(work: Callable[[], None]) -> Callable[[], None]:
    """Start ``work`` in a thread; return a function that joins it and raises its error."""
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
