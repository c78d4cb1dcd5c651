"""Messages from one rank to another, matched by tag."""

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NoReturn

from weft._core import MAIL_INLINE, is_sent, mail_bytes, open_mail, post, take, wait_sent
from weft.errors import DisagreeError, UsageError
from weft.runtime.crew import Crew
from weft.runtime.faults import Halted, Reason
from weft.runtime.memory import Bindable, located


def open_slots(crew: Crew) -> None:
    """Make room for the messages of a world. Collective."""
    nbytes = mail_bytes(crew.num_ranks)
    block = crew.blocks.take(nbytes)
    if failure := crew.attempt("mail", lambda: crew.reserve(block, nbytes)):
        raise failure
    open_mail(crew.member, crew.region(0) + block, crew.region(1) - crew.region(0))


class Message:
    """One that is sent or received: ``wait`` for it before its memory is touched.

    Nobody carries it on but the two ranks themselves, in ``wait`` and ``is_done``; what stands
    before it in its ``line`` is carried on first. Where no rank may read another's memory, a
    long one goes in parts that fit a slot.

    Threads: any of them may wait for it or look at it once it is in a line (``Lines.join``). One
    without a line is carried on by one thread at a time.
    """

    line: "Line | None" = None

    def __init__(self, crew: Crew, memory: Bindable, peer: int, tag: int, *, sends: bool) -> None:
        address, self._nbytes = _checked(crew, memory, peer, tag, sends=sends)
        self._crew, self._peer, self._tag, self._sends = crew, peer, tag, sends
        self._keep: Any = memory
        self._parts = list(_parts(address, self._nbytes, cut=crew.stages))
        self._num_parts = len(self._parts)
        self._slot: int | None = None  # of a part that the receiver has yet to read

    def is_done(self) -> bool:
        """Return whether it has come or gone; carries it on as far as that goes at once."""
        return self._go_on(waits=False)

    @property
    def has_begun(self) -> bool:
        """Whether a part of it has come or gone: no other message may use its memory then."""
        return len(self._parts) < self._num_parts

    def wait(self) -> None:
        """Return when it has come or gone."""
        self._go_on(waits=True)

    def __repr__(self) -> str:
        return _described(self._nbytes, self._peer, self._tag, sends=self._sends)

    @classmethod
    def posted(cls, crew: Crew, memory: Bindable, peer: int, tag: int, slot: int) -> "Message":
        """Make a message of one that was posted, so that its memory stays until it was read."""
        message = cls(crew, memory, peer, tag, sends=True)
        message._slot = slot
        return message

    def _go_on(self, *, waits: bool) -> bool:
        line = self.line
        while self._parts:
            if line is None:
                if not self._step(waits=waits):
                    return False
            elif not line.enter(self, waits=waits):
                return not self._parts
            else:
                try:
                    if not line.first.step(waits=waits):
                        return False
                finally:
                    line.leave()
        return True

    def step(self, *, waits: bool) -> bool:
        """Carry its next part on, being the first in line; tell whether that has come or gone."""
        if not self._step(waits=waits):
            return False
        if not self._parts and self.line is not None:
            self.line.messages.popleft()
        return True

    @property
    def is_over(self) -> bool:
        """Whether all of it has come or gone."""
        return not self._parts

    def _step(self, *, waits: bool) -> bool:
        act = self._send if self._sends else self._receive
        if not act(*self._parts[0], waits=waits):
            return False
        self._parts.pop(0)
        if not self._parts:
            self._keep = None
        return True

    def _send(self, address: int, nbytes: int, *, waits: bool) -> bool:
        member = self._crew.member
        if self._slot is None:
            slot, halt = post(member, self._peer, self._tag, address, nbytes, waits)
            self._raise(halt)
            if slot is None or nbytes <= MAIL_INLINE:
                return slot is not None
            self._slot = slot
        if waits:
            self._raise(wait_sent(member, self._peer, self._slot))
        elif not is_sent(member, self._peer, self._slot):
            return False
        self._slot = None
        return True

    def _receive(self, address: int, nbytes: int, *, waits: bool) -> bool:
        size, halt = take(self._crew.member, self._peer, self._tag, address, nbytes, waits)
        self._raise(halt)
        if size is not None and size != nbytes:
            _raise_other_size(self._crew, self._peer, size, repr(self))
        return size is not None

    def _raise(self, halt: Halted | None) -> None:
        if halt is not None:
            self._crew.raise_halt(halt, lambda _: repr(self))


class Line:
    """The messages with one peer and tag that are not over, in their order.

    Threads: one at a time carries the first message on (``enter`` to ``leave``). It may wait in the
    native core for long; others that wait sleep until it has come a step further, and others that
    only look do not wait for it.
    """

    __slots__ = ("_busy", "_entered", "_stepped", "_waiting", "messages")

    def __init__(self, stepped: threading.Condition) -> None:
        self.messages: deque[Message] = deque()
        self._busy = threading.RLock()  # which the thread that has it may take again
        self._entered = False  # of that thread: a signal handler sees that it interrupted a step
        self._stepped = stepped
        self._waiting = 0

    @property
    def first(self) -> Message:
        """The message that is carried on; for the thread that entered."""
        return self.messages[0]

    def enter(self, message: Message, *, waits: bool) -> bool:
        """Take the line to carry it on, unless ``message`` is over or another thread has it."""
        if self._busy.acquire(blocking=False):
            if self._entered:
                self._busy.release()
                return self._refuse(message, waits=waits)
            self._entered = True
            if not message.is_over:
                return True
            self.leave()
            return False
        if not waits:
            return False
        with self._stepped:
            self._waiting += 1
            try:
                # Who has the line leaves it by its own deadline, and tells those that it sees here.
                while not message.is_over:
                    if self._busy.acquire(blocking=False):
                        self._entered = True
                        return True
                    self._stepped.wait()
                return False
            finally:
                self._waiting -= 1

    def leave(self) -> None:
        """Hand the connection to another thread."""
        self._entered = False
        self._busy.release()
        if self._waiting:
            with self._stepped:
                self._stepped.notify_all()

    @staticmethod
    def _refuse(message: Message, *, waits: bool) -> bool:
        if waits:
            raise UsageError(
                f"a signal handler cannot wait for {message}: the call that it interrupted has "
                "the same peer and tag.",
                "Use another tag.",
            )
        return False


class Lines:
    """The lines of a world by direction, peer and tag. Threads: any.

    Where nothing stands in line and no message goes in parts, a call needs no line (``has``):
    the native core lets the threads that send and receive take turns.
    """

    _MANY = 64  # lines, after which those without a message are dropped

    def __init__(self) -> None:
        self._lines: dict[tuple[bool, int, int], Line] = {}
        self._joining = threading.RLock()  # a signal handler may send inside of a call
        self._stepped = threading.Condition()

    def has(self, key: tuple[bool, int, int]) -> bool:
        """Return whether a message stands in that line."""
        line = self._lines.get(key)
        return line is not None and bool(line.messages)

    def join(self, message: Message, key: tuple[bool, int, int]) -> None:
        """Put a message at the end of its line."""
        with self._joining:  # or a line might be dropped that is about to have a message
            line = self._lines.get(key)
            if line is None:
                if len(self._lines) >= self._MANY:
                    self._lines = {key: each for key, each in self._lines.items() if each.messages}
                line = self._lines[key] = Line(self._stepped)
            line.messages.append(message)
            message.line = line

    def clear(self) -> None:
        """Forget all lines; threads that wait in one still end.

        Without the lock: a forked child does this, and who had the lock may be no thread of it.
        """
        self._lines = {}


def send_now(crew: Crew, lines: Lines, memory: Bindable, peer: int, tag: int) -> None:
    """Send a message that nothing stands before, in one part."""
    address, nbytes = _checked(crew, memory, peer, tag, sends=True)
    member = crew.member
    slot, halt = post(member, peer, tag, address, nbytes, True)
    if halt is None and nbytes > MAIL_INLINE:
        assert slot is not None
        try:
            halt = wait_sent(member, peer, slot)
        except BaseException:  # a signal handler raised: the other rank may still read it
            lines.join(Message.posted(crew, memory, peer, tag, slot), (True, peer, tag))
            raise
    if halt is not None:
        crew.raise_halt(halt, lambda _: _described(nbytes, peer, tag, sends=True))


def receive_now(crew: Crew, memory: Bindable, peer: int, tag: int) -> None:
    """Receive a message that nothing stands before, in one part."""
    address, nbytes = _checked(crew, memory, peer, tag, sends=False)
    size, halt = take(crew.member, peer, tag, address, nbytes, True)
    if halt is not None:
        crew.raise_halt(halt, lambda _: _described(nbytes, peer, tag, sends=False))
    if size != nbytes:
        assert size is not None
        _raise_other_size(crew, peer, size, _described(nbytes, peer, tag, sends=False))


def _checked(crew: Crew, memory: Bindable, peer: int, tag: int, *, sends: bool) -> tuple[int, int]:
    """Return address and bytes of a message's memory; raise where there can be no such message."""
    if not 0 <= peer < crew.num_ranks or peer == crew.rank:
        raise UsageError(f"rank {crew.rank} has no messages with rank {peer}.")
    if tag < 0:
        raise UsageError(f"a tag counts from zero, it is not {tag}.")
    crew.require_sound()
    return located(memory, writable=not sends)


def _described(nbytes: int, peer: int, tag: int, *, sends: bool) -> str:
    return f"{nbytes} bytes {'to' if sends else 'from'} rank {peer}, tag {tag}"


def _raise_other_size(crew: Crew, peer: int, size: int, message: str) -> NoReturn:
    text = f"rank {peer} sends {size} bytes, rank {crew.rank} receives {message}"
    crew.fail(Reason.DISAGREE, peer, text)
    raise DisagreeError(f"{text}.", "Both sides of a message must be equally long.")


def _parts(address: int, nbytes: int, *, cut: bool) -> Iterator[tuple[int, int]]:
    if not cut or nbytes <= MAIL_INLINE:
        yield address, nbytes
        return
    for at in range(0, nbytes, MAIL_INLINE):
        yield address + at, min(MAIL_INLINE, nbytes - at)
