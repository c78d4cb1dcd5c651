"""Streams and events of a captured step, with their dependencies as on a GPU.

A stream's *front* is what its next op has to wait for: for each stream, the last op of it. An op
issued to a stream waits for the front and becomes the front; ``wait_stream``, ``wait_event`` and
``Work.wait`` add to it. Nothing here runs: the classes stand in for those of ``torch.cuda`` while
a step is captured, so that code which manages its own streams (FSDP2 is such code) says itself
what may overlap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

DEFAULT = "compute"  # the stream that ops are issued to unless the step asks for another
Front = dict[str, int]  # by stream, the last op that has to end first


def merge(front: Front, other: Mapping[str, int]) -> None:
    """Add what ``other`` waits for to ``front``."""
    for stream, number in other.items():
        if front.get(stream, -1) < number:
            front[stream] = number


class CapturedStreams:
    """The streams of one captured rank; ``current`` receives what is issued.

    ``on_host_wait`` is called with a name and a front whenever the host waits for the device.
    ``Stream`` and ``Event`` are the classes that code under capture makes its own of.
    """

    def __init__(self, on_host_wait: Callable[[str, Front], None]) -> None:
        self.on_host_wait = on_host_wait
        self.generation = 0  # events recorded before the step began are done
        self.all: list[CapturedStream] = []
        self.Stream: type[CapturedStream] = type("Stream", (CapturedStream,), {"streams": self})
        self.Event: type[CapturedEvent] = type("Event", (CapturedEvent,), {"streams": self})
        self.default = self.current = self.Stream()

    def front(self) -> Front:
        """Return what a wait for the whole device waits for."""
        found: Front = {}
        for stream in self.all:
            merge(found, stream.front)
        return found

    def clear(self) -> None:
        """Drop the dependencies of all streams: the ops so far are not part of the step."""
        self.generation += 1
        for stream in self.all:
            stream.front.clear()


class CapturedStream:
    """A stream, with the methods that ``torch.cuda.Stream`` has."""

    streams: CapturedStreams
    cuda_stream = native_handle = 0
    device_index = 0

    def __init__(self, *_device: Any, priority: int = 0, **_options: Any) -> None:
        number = len(self.streams.all)
        self.stream_id, self.priority = number, priority
        self.name = f"stream {number}" if number else DEFAULT
        self.front: Front = {}
        self._outer: list[CapturedStream] = []
        self.streams.all.append(self)

    def wait_stream(self, stream: CapturedStream) -> None:
        """Wait for what was issued to another stream."""
        merge(self.front, stream.front)

    def wait_event(self, event: CapturedEvent | None) -> None:
        """Wait for what an event recorded."""
        if event is not None and event.generation == self.streams.generation:
            merge(self.front, event.front)

    def record_event(self, event: CapturedEvent | None = None) -> CapturedEvent:
        """Record what was issued so far."""
        event = event or self.streams.Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Make the host wait for what was issued."""
        self.streams.on_host_wait("stream.synchronize", self.front)

    def query(self) -> bool:
        """Return True: nothing runs while a step is captured."""
        return True

    def is_capturing(self) -> bool:
        """Return False: there are no CUDA graphs here."""
        return False

    @property
    def device(self) -> torch.device:
        """The device that a stream is of."""
        return torch.device("cuda", self.device_index)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority, as on NVIDIA's GPUs."""
        return 0, -5

    def __enter__(self) -> CapturedStream:  # noqa: PYI034 - Python 3.10 has no Self
        self._outer.append(self.streams.current)
        self.streams.current = self
        return self

    def __exit__(self, *_: object) -> None:
        self.streams.current = self._outer.pop()


class CapturedEvent:
    """An event, with the methods that ``torch.cuda.Event`` has."""

    streams: CapturedStreams

    def __init__(self, *_device: Any, **_options: Any) -> None:
        self.front: Front = {}
        self.generation = -1

    def record(self, stream: CapturedStream | None = None) -> None:
        """Record what was issued to a stream."""
        self.front = dict((stream or self.streams.current).front)
        self.generation = self.streams.generation

    def wait(self, stream: CapturedStream | None = None) -> None:
        """Make a stream wait for what was recorded."""
        (stream or self.streams.current).wait_event(self)

    def synchronize(self) -> None:
        """Make the host wait for what was recorded."""
        if self.generation == self.streams.generation:
            self.streams.on_host_wait("event.synchronize", self.front)

    def query(self) -> bool:
        """Return True: nothing runs while a step is captured."""
        return True

    def elapsed_time(self, _end: CapturedEvent) -> float:
        """Return a millisecond: there is nothing to measure, and code may divide by it."""
        return 1.0


def stream_api(streams: CapturedStreams) -> dict[str, Any]:
    """Return what a device module (``torch.cuda``, ``torch.cpu``) offers to manage streams."""

    class StreamContext:
        def __new__(cls, stream: CapturedStream | None) -> Any:
            return contextlib.nullcontext() if stream is None else stream

    def set_current(stream: CapturedStream | None, *_: Any) -> None:
        streams.current = stream or streams.current

    def synchronize(*_: Any, **_options: Any) -> None:
        streams.on_host_wait("synchronize", streams.front())

    return {
        "Stream": streams.Stream,
        "ExternalStream": streams.Stream,
        "Event": streams.Event,
        "stream": StreamContext,
        "StreamContext": StreamContext,
        "current_stream": lambda *_args, **_options: streams.current,
        "default_stream": lambda *_args, **_options: streams.default,
        "set_stream": set_current,
        "synchronize": synchronize,
    }
