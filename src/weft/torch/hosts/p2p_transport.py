"""Point-to-point messages between hosts, matched by tag.

Two ranks that exchange messages have a connection: an ordered stream of control messages each way.
A short message is part of its control message (eager). A long one uses a rendezvous:

    sender ── RTS ──▶ receiver ── CTS ──▶ sender ── DATA + bytes ──▶ receiver ── RECEIVED ──▶ sender
"""

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from weft.errors import DisagreeError, RankDiedError, RunError, UsageError
from weft.torch.hosts.chunks import as_bytes
from weft.torch.hosts.gloo_transport import GlooTransport, Transfer
from weft.torch.hosts.host_map import HostMap

INLINE = 8 << 10  # bytes that are sent with their control message
_CONTROL, _LONG = 5, 6  # tags of the transport
_HEAD = struct.Struct("<5q")
_PAUSE = 50e-6  # seconds between polls
_TO_READ = 5.0  # seconds to wait on close until the peers have read their messages
_TO_END = 1.0  # seconds for a thread to end after its connection was closed
_CONFIRM = 16  # control messages after which an ACK is sent


_Waiting = TypeVar("_Waiting")
ReportFailure = Callable[[BaseException], RunError]  # reports a failure to all hosts


class ControlKind(IntEnum):
    """The kinds of control messages."""

    RTS = 0
    CTS = 1
    DATA = 2
    RECEIVED = 3
    ACK = 4
    CLOSE = 5


class ControlMessage(NamedTuple):
    """A control message; ``seen`` acknowledges so many messages of the peer."""

    kind: ControlKind
    number: int
    tag: int
    nbytes: int
    seen: int


class InterHostMessage:
    """A send or a receive; its memory may be reused when ``is_done``."""

    def __init__(self, connection: "P2PConnection", x: Tensor, tag: int, *, sends: bool) -> None:
        self.connection, self.memory, self.tag, self.sends = connection, as_bytes(x), tag, sends
        self.done = False
        self.has_started = False
        self.failure: Exception | None = None

    def is_done(self) -> bool:
        """Return whether it is complete; the first call posts it."""
        if not self.has_started:
            self.has_started = True
            self.connection.post(self)
        if self.failure is not None:
            raise self.connection.report_failure(self.failure)
        if not self.done:
            self.connection.require_open()
        return self.done

    def __repr__(self) -> str:
        direction = "to" if self.sends else "from"
        return (
            f"{self.memory.numel()} bytes {direction} rank {self.connection.peer}, tag {self.tag}"
        )


class AnnouncedReceive:
    """A receive from one of several ranks: it matches only messages that were announced."""

    def __init__(self, message: InterHostMessage) -> None:
        self._message = message

    @property
    def has_started(self) -> bool:
        """Whether it has matched a message."""
        return self._message.has_started

    def is_done(self) -> bool:
        """Return whether a message was received."""
        announced = self.has_started or self._message.connection.has_announced(self._message.tag)
        return announced and self._message.is_done()


class P2PConnection:
    """The control messages between two ranks, and a thread that reads them."""

    def __init__(
        self,
        transport: GlooTransport,
        hosts: HostMap,
        rank: int,
        peer: int,
        report_failure: ReportFailure,
    ) -> None:
        self._transport, self._rank, self.peer = transport, rank, peer
        self.report_failure = report_failure
        self._where = hosts.describe(peer)
        self._lock = threading.RLock()
        # By tag, only of tags with messages: a job may use a new tag for each message.
        self._wanted: dict[int, deque[InterHostMessage]] = {}
        self._announced: dict[int, deque[tuple[ControlMessage, Tensor]]] = {}
        self._in_flight: dict[tuple[bool, int], InterHostMessage] = {}  # by (sent by us, number)
        self._written: deque[list[object]] = deque()  # messages that the peer may not have read
        self._num_written = self._num_acknowledged = self._num_read = self._num_announced = 0
        self._closed = False
        self._thread = threading.Thread(target=self._read_messages, name="weft-p2p", daemon=True)
        self._thread.start()

    def post(self, message: InterHostMessage) -> None:
        """Announce a send, or match a receive with an announced one."""
        with self._lock:
            if message.sends:
                self._announce(message)
            elif message.tag in self._announced:
                self._match(message, *_pop(self._announced, message.tag))
            else:
                self._wanted.setdefault(message.tag, deque()).append(message)

    def has_announced(self, tag: int) -> bool:
        """Return whether a message of that tag waits for a receive."""
        with self._lock:
            self.require_open()
            return tag in self._announced

    def require_open(self) -> None:
        """Raise if the peer has left."""
        if self._closed:
            raise RankDiedError(
                f"{self._where} died or left the group while rank {self._rank} waited for it.",
                f"Check the output of rank {self.peer} for the reason.",
            )

    def send_close(self) -> None:
        """Send CLOSE, so that the peer acknowledges everything it has read."""
        with self._lock, contextlib.suppress(RuntimeError):  # the connection may be closed
            if not self._closed:
                self._write(ControlKind.CLOSE, 0)

    def is_read(self) -> bool:
        """Return whether the peer has read every control message, or never will."""
        return self._closed or self._num_acknowledged >= self._num_written

    def join(self) -> bool:
        """Wait for the thread, after the connection was closed; return whether it has ended.

        Gloo does not wake a thread whose bytes had begun to arrive when the connection was closed.
        """
        self._thread.join(_TO_END)
        return not self._thread.is_alive()

    def _announce(self, message: InterHostMessage) -> None:
        number, self._num_announced = self._num_announced, self._num_announced + 1
        nbytes = message.memory.numel()
        self._write(ControlKind.RTS, number, message.tag, nbytes, message.memory[: _inline(nbytes)])
        if nbytes <= INLINE:
            message.done = True
        else:
            self._in_flight[True, number] = message

    def _match(self, message: InterHostMessage, control: ControlMessage, text: Tensor) -> None:
        if control.nbytes != message.memory.numel():
            message.failure = DisagreeError(
                f"rank {self.peer} sends {control.nbytes} bytes, rank {self._rank} receives "
                f"{message}.",
                "Send and receive the same number of bytes.",
            )
        elif control.nbytes <= INLINE:
            message.memory.copy_(text)
            message.done = True
        else:
            self._in_flight[False, control.number] = message
            self._write(ControlKind.CTS, control.number)

    def _write(
        self,
        kind: ControlKind,
        number: int,
        tag: int = 0,
        nbytes: int = 0,
        text: Tensor | None = None,
    ) -> list[object]:
        head = _HEAD.pack(kind, number, tag, nbytes, self._num_read)
        control = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        if text is not None:
            control = torch.cat([control, text])
        kept: list[object] = [self._transport.send(control, self.peer, _CONTROL)]
        self._written.append(kept)
        self._num_written += 1
        return kept

    def _read_messages(self) -> None:
        buffer = torch.empty(_HEAD.size + INLINE, dtype=torch.uint8)
        try:
            while True:
                self._transport.recv(buffer, self.peer, _CONTROL).wait_without_timeout()
                control = _read(buffer)
                # The bytes follow: receive them without the lock.
                if control.kind is ControlKind.DATA:
                    self._take(self._in_flight.pop((False, control.number)))
                with self._lock:
                    self._handle(control, buffer[_HEAD.size : _HEAD.size + _inline(control.nbytes)])
        except RuntimeError:  # one side closed the connection
            self._closed = True

    def _handle(self, control: ControlMessage, text: Tensor) -> None:
        self._num_read += 1
        while self._num_acknowledged < control.seen:
            self._written.popleft()
            self._num_acknowledged += 1
        match control.kind:
            case ControlKind.RTS:
                self._handle_announcement(control, text)
            case ControlKind.CTS:
                message = self._in_flight[True, control.number]
                kept = self._write(ControlKind.DATA, control.number)
                kept.append(self._transport.send(message.memory, self.peer, _LONG))
            case ControlKind.DATA:
                self._write(ControlKind.RECEIVED, control.number)
            case ControlKind.RECEIVED:
                self._in_flight.pop((True, control.number)).done = True
            case ControlKind.ACK | ControlKind.CLOSE:
                pass
        due = self._num_read % _CONFIRM == 0 and control.kind is not ControlKind.ACK
        if due or control.kind is ControlKind.CLOSE:
            self._write(ControlKind.ACK, 0)

    def _handle_announcement(self, control: ControlMessage, text: Tensor) -> None:
        if control.tag in self._wanted:
            self._match(_pop(self._wanted, control.tag), control, text)
        else:
            self._announced.setdefault(control.tag, deque()).append((control, text.clone()))

    def _take(self, message: InterHostMessage) -> None:
        transfer: Transfer = self._transport.recv(message.memory, self.peer, _LONG)
        transfer.wait_without_timeout()
        message.done = True


class P2PTransport:
    """The connections of a rank; the first message to a peer opens one."""

    def __init__(
        self, transport: GlooTransport, hosts: HostMap, rank: int, report_failure: ReportFailure
    ) -> None:
        self._transport = transport
        self._hosts = hosts
        self._rank = rank
        self._report_failure = report_failure
        self._connections: dict[int, P2PConnection] = {}
        self._lock = threading.Lock()
        self._closed = False

    def message(self, x: Tensor, peer: int, tag: int, *, sends: bool) -> InterHostMessage:
        """Return a send or receive with a rank of another host."""
        if not 0 <= peer < len(self._hosts.of) or peer == self._rank:
            raise UsageError(f"peer: rank {self._rank} cannot exchange messages with rank {peer}.")
        if tag < 0:
            raise UsageError(f"tag: must be >= 0 (got {tag}).")
        with self._lock:
            if self._closed:  # a new connection would read the messages of the one that ends
                raise RunError("the group was closed.", "Make a new group.")
            if peer not in self._connections:
                self._connections[peer] = P2PConnection(
                    self._transport, self._hosts, self._rank, peer, self._report_failure
                )
            return InterHostMessage(self._connections[peer], x, tag, sends=sends)

    def close(self) -> None:
        """End the threads when the peers have read all messages."""
        with self._lock:
            self._closed = True
            connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.send_close()
        deadline = time.monotonic() + _TO_READ
        while time.monotonic() < deadline and not all(
            connection.is_read() for connection in connections
        ):
            time.sleep(_PAUSE)
        if connections:
            self._transport.close_all()
        ended = [connection.join() for connection in connections]
        if not all(ended):
            self._transport.keep_forever()


def _pop(queues: dict[int, deque[_Waiting]], tag: int) -> _Waiting:
    """Take the first of a tag's queue; drop the queue if it was the last."""
    first = queues[tag].popleft()
    if not queues[tag]:
        del queues[tag]
    return first


def _inline(nbytes: int) -> int:
    return nbytes if nbytes <= INLINE else 0


def _read(buffer: Tensor) -> ControlMessage:
    kind, *rest = _HEAD.unpack(bytes(buffer[: _HEAD.size].tolist()))
    return ControlMessage(ControlKind(kind), *rest)
