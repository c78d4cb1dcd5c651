"""Messages from one rank to another on a different host, matched by tag.

Each two ranks that have such messages keep one stream of short notes each way, in order.
A short message is written into its note. A long one is offered, asked for by the receiver
when it has a place for it, sent there directly, and confirmed.
"""

import contextlib
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor

from weft.errors import DisagreeError, RankDiedError, RunError, UsageError
from weft.torch.hosts.chunks import as_bytes
from weft.torch.hosts.gloo_transport import GlooTransport, Transfer
from weft.torch.hosts.host_map import HostMap

INLINE = 8 << 10  # bytes that go with their note
_CONTROL, _LONG = 5, 6  # tags of the wire
_HEAD = struct.Struct("<5q")
_PAUSE = 50e-6  # seconds between looks
_TO_READ = 5.0  # seconds that one who leaves gives the others to read their notes
_CONFIRM = 16  # notes after which one who has nothing to say says that they came


ReportFailure = Callable[[BaseException], RunError]  # makes a failure known to all


class ControlKind(IntEnum):
    """What a note is about."""

    RTS = 0
    CTS = 1
    DATA = 2
    RECEIVED = 3
    ACK = 4
    CLOSE = 5


class ControlMessage(NamedTuple):
    """One note as it is written: ``seen`` counts the notes that came from the other side."""

    kind: ControlKind
    number: int
    tag: int
    nbytes: int
    seen: int


class InterHostMessage:
    """One that is sent or received: ``is_done`` tells when its memory may be touched."""

    def __init__(self, connection: "P2PConnection", x: Tensor, tag: int, *, sends: bool) -> None:
        self.connection, self.memory, self.tag, self.sends = connection, as_bytes(x), tag, sends
        self.done = False
        self.has_started = False
        self.failure: Exception | None = None

    def is_done(self) -> bool:
        """Tell whether it has come or gone; the first look posts it."""
        if not self.has_started:
            self.has_started = True
            self.connection.post(self)
        if self.failure is not None:
            raise self.connection.report_failure(self.failure)
        if not self.done:
            self.connection.require_open()
        return self.done

    def __repr__(self) -> str:
        encoding = "to" if self.sends else "from"
        return f"{self.memory.numel()} bytes {encoding} rank {self.connection.peer}, tag {self.tag}"


class OfferedReceive:
    """A receive from one of several ranks: it takes only what has been offered."""

    def __init__(self, message: InterHostMessage) -> None:
        self._message = message

    @property
    def has_started(self) -> bool:
        """Whether it has taken what was offered."""
        return self._message.has_started

    def is_done(self) -> bool:
        """Tell whether a message has come."""
        offered = self.has_started or self._message.connection.has_offer(self._message.tag)
        return offered and self._message.is_done()


class P2PConnection:
    """The notes between two ranks, and a thread that reads them."""

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
        self._wanted: dict[int, deque[InterHostMessage]] = defaultdict(deque)  # by tag
        self._offered: dict[int, deque[tuple[ControlMessage, Tensor]]] = defaultdict(deque)
        self._in_flight: dict[tuple[bool, int], InterHostMessage] = {}  # ours?, its number
        self._written: deque[list[object]] = deque()  # notes the other may not have read
        self._num_written = self._num_forgotten = self._num_read = self._num_offers = 0
        self._closed = False
        self._thread = threading.Thread(target=self._read_messages, name="weft-mail", daemon=True)
        self._thread.start()

    def post(self, message: InterHostMessage) -> None:
        """Offer a message, or take what has been offered."""
        with self._lock:
            if message.sends:
                self._offer(message)
            elif offers := self._offered[message.tag]:
                self._match(message, *offers.popleft())
            else:
                self._wanted[message.tag].append(message)

    def has_offer(self, tag: int) -> bool:
        """Tell whether a message of that tag waits for a receive."""
        with self._lock:
            self.require_open()
            return bool(self._offered[tag])

    def require_open(self) -> None:
        """Raise if the other rank is gone."""
        if self._closed:
            raise RankDiedError(
                f"{self._where} died or left the group while rank {self._rank} waited for it.",
                f"Look into the output of rank {self.peer} for the reason.",
            )

    def send_close(self) -> None:
        """Ask the other side to say that it has read everything."""
        with self._lock, contextlib.suppress(RuntimeError):  # the connection may be closed
            if not self._closed:
                self._write(ControlKind.CLOSE, 0)

    def is_read(self) -> bool:
        """Tell whether the other side has read every note, or never will."""
        return self._closed or self._num_forgotten >= self._num_written

    def join(self) -> None:
        """Wait for the thread, after the connection was closed."""
        self._thread.join()

    def _offer(self, message: InterHostMessage) -> None:
        number, self._num_offers = self._num_offers, self._num_offers + 1
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
                "Both sides of a message must be equally long.",
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
        room = torch.empty(_HEAD.size + INLINE, dtype=torch.uint8)
        try:
            while True:
                self._transport.recv(room, self.peer, _CONTROL).wait_without_timeout()
                control = _read(room)
                if control.kind is ControlKind.DATA:  # it is on its way: no need of the lock
                    self._take(self._in_flight.pop((False, control.number)))
                with self._lock:
                    self._handle(control, room[_HEAD.size : _HEAD.size + _inline(control.nbytes)])
        except RuntimeError:  # the connection is closed, by whichever side
            self._closed = True

    def _handle(self, control: ControlMessage, text: Tensor) -> None:
        self._num_read += 1
        while self._num_forgotten < control.seen:
            self._written.popleft()
            self._num_forgotten += 1
        match control.kind:
            case ControlKind.RTS:
                self._handle_offer(control, text)
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

    def _handle_offer(self, control: ControlMessage, text: Tensor) -> None:
        if wanted := self._wanted[control.tag]:
            self._match(wanted.popleft(), control, text)
        else:
            self._offered[control.tag].append((control, text.clone()))

    def _take(self, message: InterHostMessage) -> None:
        transfer: Transfer = self._transport.recv(message.memory, self.peer, _LONG)
        transfer.wait_without_timeout()
        message.done = True


class P2PTransport:
    """All lines of a rank; the first message of two ranks opens theirs."""

    def __init__(
        self, transport: GlooTransport, hosts: HostMap, rank: int, report_failure: ReportFailure
    ) -> None:
        self._transport, self._hosts, self._rank, self._report_failure = (
            transport,
            hosts,
            rank,
            report_failure,
        )
        self._connections: dict[int, P2PConnection] = {}
        self._lock = threading.Lock()

    def message(self, x: Tensor, peer: int, tag: int, *, sends: bool) -> InterHostMessage:
        """Make a message to or from a rank of another host."""
        if not 0 <= peer < len(self._hosts.of) or peer == self._rank:
            raise UsageError(f"rank {self._rank} has no messages with rank {peer}.")
        if tag < 0:
            raise UsageError(f"a tag counts from zero, it is not {tag}.")
        with self._lock:
            if peer not in self._connections:
                self._connections[peer] = P2PConnection(
                    self._transport, self._hosts, self._rank, peer, self._report_failure
                )
            return InterHostMessage(self._connections[peer], x, tag, sends=sends)

    def close(self) -> None:
        """End the threads, when the others have read what was written to them."""
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
        for connection in connections:
            connection.join()


def _inline(nbytes: int) -> int:
    return nbytes if nbytes <= INLINE else 0


def _read(room: Tensor) -> ControlMessage:
    kind, *rest = _HEAD.unpack(bytes(room[: _HEAD.size].tolist()))
    return ControlMessage(ControlKind(kind), *rest)
