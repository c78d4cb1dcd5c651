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
from weft.torch.hosts.gloo_transport import Transfer, Wire
from weft.torch.hosts.host_map import Hosts

INLINE = 8 << 10  # bytes that go with their note
_NOTES, _LONG = 5, 6  # tags of the wire
_HEAD = struct.Struct("<5q")
_PAUSE = 50e-6  # seconds between looks
_TO_READ = 5.0  # seconds that one who leaves gives the others to read their notes
_CONFIRM = 16  # notes after which one who has nothing to say says that they came


Told = Callable[[BaseException], RunError]  # makes a failure known to all


class Kind(IntEnum):
    """What a note is about."""

    OFFER = 0
    ASK = 1
    SENT = 2
    GOT = 3
    SEEN = 4
    BYE = 5


class Note(NamedTuple):
    """One note as it is written: ``seen`` counts the notes that came from the other side."""

    kind: Kind
    number: int
    tag: int
    nbytes: int
    seen: int


class FarMessage:
    """One that is sent or received: ``is_done`` tells when its memory may be touched."""

    def __init__(self, line: "Line", x: Tensor, tag: int, *, sends: bool) -> None:
        self.line, self.memory, self.tag, self.sends = line, as_bytes(x), tag, sends
        self.done = False
        self.has_started = False
        self.failure: Exception | None = None

    def is_done(self) -> bool:
        """Tell whether it has come or gone; the first look posts it."""
        if not self.has_started:
            self.has_started = True
            self.line.post(self)
        if self.failure is not None:
            raise self.line.told(self.failure)
        if not self.done:
            self.line.require_open()
        return self.done

    def __repr__(self) -> str:
        way = "to" if self.sends else "from"
        return f"{self.memory.numel()} bytes {way} rank {self.line.peer}, tag {self.tag}"


class Probe:
    """A receive from one of several ranks: it takes only what has been offered."""

    def __init__(self, message: FarMessage) -> None:
        self._message = message

    @property
    def has_started(self) -> bool:
        """Whether it has taken what was offered."""
        return self._message.has_started

    def is_done(self) -> bool:
        """Tell whether a message has come."""
        offered = self.has_started or self._message.line.has_offer(self._message.tag)
        return offered and self._message.is_done()


class Line:
    """The notes between two ranks, and a thread that reads them."""

    def __init__(self, wire: Wire, hosts: Hosts, rank: int, peer: int, told: Told) -> None:
        self._wire, self._rank, self.peer = wire, rank, peer
        self.told = told
        self._where = hosts.describe(peer)
        self._lock = threading.RLock()
        self._wanted: dict[int, deque[FarMessage]] = defaultdict(deque)  # by tag
        self._offered: dict[int, deque[tuple[Note, Tensor]]] = defaultdict(deque)
        self._in_flight: dict[tuple[bool, int], FarMessage] = {}  # ours?, its number
        self._written: deque[list[object]] = deque()  # notes the other may not have read
        self._num_written = self._num_forgotten = self._num_read = self._num_offers = 0
        self._closed = False
        self._thread = threading.Thread(target=self._read_notes, name="weft-mail", daemon=True)
        self._thread.start()

    def post(self, message: FarMessage) -> None:
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

    def say_goodbye(self) -> None:
        """Ask the other side to say that it has read everything."""
        with self._lock, contextlib.suppress(RuntimeError):  # the connection may be closed
            if not self._closed:
                self._write(Kind.BYE, 0)

    def is_read(self) -> bool:
        """Tell whether the other side has read every note, or never will."""
        return self._closed or self._num_forgotten >= self._num_written

    def join(self) -> None:
        """Wait for the thread, after the connection was closed."""
        self._thread.join()

    def _offer(self, message: FarMessage) -> None:
        number, self._num_offers = self._num_offers, self._num_offers + 1
        nbytes = message.memory.numel()
        self._write(Kind.OFFER, number, message.tag, nbytes, message.memory[: _inline(nbytes)])
        if nbytes <= INLINE:
            message.done = True
        else:
            self._in_flight[True, number] = message

    def _match(self, message: FarMessage, note: Note, text: Tensor) -> None:
        if note.nbytes != message.memory.numel():
            message.failure = DisagreeError(
                f"rank {self.peer} sends {note.nbytes} bytes, rank {self._rank} takes {message}.",
                "Both sides of a message must be equally long.",
            )
        elif note.nbytes <= INLINE:
            message.memory.copy_(text)
            message.done = True
        else:
            self._in_flight[False, note.number] = message
            self._write(Kind.ASK, note.number)

    def _write(
        self, kind: Kind, number: int, tag: int = 0, nbytes: int = 0, text: Tensor | None = None
    ) -> list[object]:
        head = _HEAD.pack(kind, number, tag, nbytes, self._num_read)
        note = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        if text is not None:
            note = torch.cat([note, text])
        kept: list[object] = [self._wire.send(note, self.peer, _NOTES)]
        self._written.append(kept)
        self._num_written += 1
        return kept

    def _read_notes(self) -> None:
        room = torch.empty(_HEAD.size + INLINE, dtype=torch.uint8)
        try:
            while True:
                self._wire.recv(room, self.peer, _NOTES).wait_for_ever()
                note = _read(room)
                if note.kind is Kind.SENT:  # it is on its way: no need of the lock
                    self._take(self._in_flight.pop((False, note.number)))
                with self._lock:
                    self._heed(note, room[_HEAD.size : _HEAD.size + _inline(note.nbytes)])
        except RuntimeError:  # the connection is closed, by whichever side
            self._closed = True

    def _heed(self, note: Note, text: Tensor) -> None:
        self._num_read += 1
        while self._num_forgotten < note.seen:
            self._written.popleft()
            self._num_forgotten += 1
        match note.kind:
            case Kind.OFFER:
                self._heed_offer(note, text)
            case Kind.ASK:
                message = self._in_flight[True, note.number]
                kept = self._write(Kind.SENT, note.number)
                kept.append(self._wire.send(message.memory, self.peer, _LONG))
            case Kind.SENT:
                self._write(Kind.GOT, note.number)
            case Kind.GOT:
                self._in_flight.pop((True, note.number)).done = True
            case Kind.SEEN | Kind.BYE:
                pass
        due = self._num_read % _CONFIRM == 0 and note.kind is not Kind.SEEN
        if due or note.kind is Kind.BYE:
            self._write(Kind.SEEN, 0)

    def _heed_offer(self, note: Note, text: Tensor) -> None:
        if wanted := self._wanted[note.tag]:
            self._match(wanted.popleft(), note, text)
        else:
            self._offered[note.tag].append((note, text.clone()))

    def _take(self, message: FarMessage) -> None:
        transfer: Transfer = self._wire.recv(message.memory, self.peer, _LONG)
        transfer.wait_for_ever()
        message.done = True


class Letters:
    """All lines of a rank; the first message of two ranks opens theirs."""

    def __init__(self, wire: Wire, hosts: Hosts, rank: int, told: Told) -> None:
        self._wire, self._hosts, self._rank, self._told = wire, hosts, rank, told
        self._lines: dict[int, Line] = {}
        self._lock = threading.Lock()

    def message(self, x: Tensor, peer: int, tag: int, *, sends: bool) -> FarMessage:
        """Make a message to or from a rank of another host."""
        if not 0 <= peer < len(self._hosts.of) or peer == self._rank:
            raise UsageError(f"rank {self._rank} has no messages with rank {peer}.")
        if tag < 0:
            raise UsageError(f"a tag counts from zero, it is not {tag}.")
        with self._lock:
            if peer not in self._lines:
                self._lines[peer] = Line(self._wire, self._hosts, self._rank, peer, self._told)
            return FarMessage(self._lines[peer], x, tag, sends=sends)

    def close(self) -> None:
        """End the threads, when the others have read what was written to them."""
        lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.say_goodbye()
        deadline = time.monotonic() + _TO_READ
        while time.monotonic() < deadline and not all(line.is_read() for line in lines):
            time.sleep(_PAUSE)
        if lines:
            self._wire.close_all()
        for line in lines:
            line.join()


def _inline(nbytes: int) -> int:
    return nbytes if nbytes <= INLINE else 0


def _read(room: Tensor) -> Note:
    kind, *rest = _HEAD.unpack(bytes(room[: _HEAD.size].tolist()))
    return Note(Kind(kind), *rest)
