"""Streams and events of CUDA and HIP devices, and their counterpart for CPU tensors.

Not yet run on hardware: what stands here for CUDA and HIP devices is written against torch's
documentation and is carried out by tests on CPU tensors and on a stand-in that runs late.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch


class DeviceStreams(Protocol):
    """What copies are issued to. A stream is a value that only its maker understands."""

    def stream(self, device: torch.device) -> Any:
        """Make a side stream of a device."""

    def produced(self, devices: Sequence[torch.device]) -> Sequence[Any]:
        """Return events after all that the current streams of these devices were given so far."""

    def issue(self, stream: Any, devices: Sequence[torch.device], work: Callable[[], None]) -> None:
        """Issue ``work``, which uses these devices, on the stream."""

    def record(self, stream: Any) -> Any:
        """Return an event after everything on the stream so far."""

    def wait(self, stream: Any, event: Any) -> None:
        """Make the stream wait for an event."""

    def finish(self, stream: Any) -> None:
        """Return when everything on the stream has happened."""


class ImmediateStreams:
    """No device, no waiting: work happens when it is issued."""

    def stream(self, device: torch.device) -> torch.device:
        """Return the device: it has no streams."""
        return device

    def produced(self, devices: Sequence[torch.device]) -> tuple[()]:
        """Return no event: everything is complete."""
        del devices
        return ()

    def issue(self, stream: Any, devices: Sequence[torch.device], work: Callable[[], None]) -> None:
        """Do it now."""
        del stream, devices
        work()

    def record(self, stream: Any) -> None:
        """Return no event: everything is complete."""

    def wait(self, stream: Any, event: Any) -> None:
        """Do nothing: there is nothing to wait for."""

    def finish(self, stream: Any) -> None:
        """Do nothing: everything is complete."""


@dataclass(slots=True)
class _Side:
    """A side stream, and its like on the other devices that its work touches."""

    own: Any
    others: dict[torch.device, Any] = field(default_factory=dict)


def _new_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class SideStreams:
    """Streams of CUDA devices; on ROCm, torch gives HIP devices the same names.

    A copy between devices goes on the current stream of its source, and torch orders it with the
    current stream of its destination. So that it waits for no computation there, work that touches
    another device has a side stream on that one too, which begins behind its own stream and which
    that one then waits for.
    """

    def stream(self, device: torch.device) -> _Side:
        """Make a side stream."""
        return _Side(_new_stream(device))

    def produced(self, devices: Sequence[torch.device]) -> list[Any]:
        """Record an event on the current stream of every CUDA device."""
        found = []
        for device in dict.fromkeys(each for each in devices if each.type == "cuda"):
            event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(device))
            found.append(event)
        return found

    def issue(
        self, stream: _Side, devices: Sequence[torch.device], work: Callable[[], None]
    ) -> None:
        """Make the side streams of all devices current, the stream's own last, and do it."""
        far = [each for each in devices if each.type == "cuda" and each != stream.own.device]
        for device in far:
            if device not in stream.others:
                stream.others[device] = _new_stream(device)
            stream.others[device].wait_stream(stream.own)
        with ExitStack() as current:
            for side in (*(stream.others[device] for device in far), stream.own):
                current.enter_context(torch.cuda.stream(side))
            work()
        for device in far:
            stream.own.wait_stream(stream.others[device])

    def record(self, stream: _Side) -> Any:
        """Record on the stream's own device, which has waited for the others."""
        event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream.own)
        return event

    def wait(self, stream: _Side, event: Any) -> None:
        """Make the stream wait on its own device."""
        stream.own.wait_event(event)

    def finish(self, stream: _Side) -> None:
        """Wait on the host."""
        stream.own.synchronize()


def streams_for(devices: Sequence[torch.device]) -> DeviceStreams:
    """Return side streams for devices that have streams, else immediate ones."""
    return SideStreams() if any(device.type == "cuda" for device in devices) else ImmediateStreams()
