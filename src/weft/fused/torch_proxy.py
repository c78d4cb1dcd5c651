"""A proxy thread that sends what a fused kernel puts into its outbox, and receives from others.

A kernel cannot store to a rank on another node. It writes a descriptor into a queue in host-visible
memory. This thread sends the slice through torch.distributed; the receiver's thread stores it and
raises the flag that a store inside a node would have raised. Its copies run on a stream of their
own: on the stream of the kernel they would wait for the kernel, which waits for nobody to copy.
"""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from weft.errors import RunTimeoutError
from weft.fused.triton_device import FIELDS

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup

_LOOK = 50e-6  # seconds between polls of an empty queue


@dataclass
class Outbox:
    """The queue of descriptors of a kernel, with room for ``capacity`` slices.

    The kernel writes descriptors through the host's page-locked memory, which GPUs address, and
    counts them in its own memory.
    """

    capacity: int
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    queue: torch.Tensor = field(init=False)
    tail: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.queue = torch.zeros(
            (self.capacity, FIELDS), dtype=torch.int32, pin_memory=self.device.type == "cuda"
        )
        self.tail = torch.zeros(1, dtype=torch.int32, device=self.device)

    def entry(self, number: int, epoch: int) -> tuple[int, int] | None:
        """Return rank and slice of a descriptor, or None if it is not written in this epoch yet.

        The kernel writes the first field last, with release. On the memory models of GPU hosts, a
        plain read of it by this thread is ordered before reads of what it publishes.
        """
        written, rank, part = self.queue[number].tolist()
        return (rank, part) if written == epoch else None


@dataclass
class SlicePeer:
    """The ways of a proxy: the group that carries slices, and the stream that copies them."""

    group: ProcessGroup | None = None
    stream: Any = None  # of the GPU; None where tensors are the host's

    def to_host(self, slice_: torch.Tensor) -> torch.Tensor:
        """Return a slice in host memory, read next to the kernel that is still running."""
        if self.stream is None:
            return slice_.contiguous()
        with torch.cuda.stream(self.stream):
            taken = slice_.to("cpu", non_blocking=True)
        self.stream.synchronize()
        return taken

    def store(self, arrived: torch.Tensor, place: torch.Tensor) -> None:
        """Copy what arrived to its place; return when it is there."""
        with nullcontext() if self.stream is None else torch.cuda.stream(self.stream):
            place.copy_(arrived, non_blocking=True)
        if self.stream is not None:
            self.stream.synchronize()


def send_slices(
    outbox: Outbox,
    count: int,
    slice_of: Callable[[int, int], torch.Tensor],
    *,
    epoch: int,
    timeout: float,
    by: SlicePeer | None = None,
) -> None:
    """Send ``count`` slices as the kernel publishes them, each ``slice_of(rank, part)``.

    The number of the slice is sent first. Every wait ends after ``timeout`` seconds.
    """
    by = by or SlicePeer()
    works: list[dist.Work | None] = []
    kept: list[torch.Tensor] = []  # until it is sent
    for number in range(count):
        rank, part = _next(outbox, number, epoch, timeout)
        kept += (torch.tensor([part]), by.to_host(slice_of(rank, part)))
        works += (dist.isend(tensor, rank, group=by.group) for tensor in kept[-2:])
    for work in works:
        if work is not None:
            work.wait()


def _next(outbox: Outbox, number: int, epoch: int, timeout: float) -> tuple[int, int]:
    deadline = time.monotonic() + timeout
    while (found := outbox.entry(number, epoch)) is None:
        if time.monotonic() > deadline:
            raise RunTimeoutError(
                f"slice {number} of a fused kernel timed out after {timeout:g} s.",
                "Check the kernel: it may have failed, or produce fewer slices than expected.",
            )
        time.sleep(_LOOK)
    return found


def take_slices(
    sender: int,
    count: int,
    place_of: Callable[[int], torch.Tensor],
    flag_of: Callable[[int], torch.Tensor],
    *,
    epoch: int,
    by: SlicePeer | None = None,
) -> None:
    """Receive ``count`` slices from ``sender``, store each and raise its flag to ``epoch``."""
    by = by or SlicePeer()
    number = torch.zeros(1, dtype=torch.int64)
    for _ in range(count):
        dist.recv(number, sender, group=by.group)
        part = int(number.item())
        place = place_of(part)
        arriving = torch.empty(place.shape, dtype=place.dtype)
        dist.recv(arriving, sender, group=by.group)
        by.store(arriving, place)
        flag = flag_of(part)
        by.store(torch.full(flag.shape, epoch, dtype=flag.dtype), flag)


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
