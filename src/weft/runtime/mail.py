"""Messages from one rank to another, matched by tag."""

from collections import deque
from collections.abc import Iterator
from typing import Any

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
    """

    def __init__(
        self,
        crew: Crew,
        memory: Bindable,
        peer: int,
        tag: int,
        *,
        sends: bool,
        line: "Line | None" = None,
    ) -> None:
        if not 0 <= peer < crew.num_ranks or peer == crew.rank:
            raise UsageError(f"rank {crew.rank} has no messages with rank {peer}.")
        if tag < 0:
            raise UsageError(f"a tag counts from zero, it is not {tag}.")
        crew.require_sound()
        address, self._nbytes = located(memory, writable=not sends)
        self._crew, self._peer, self._tag, self._sends = crew, peer, tag, sends
        self._keep: Any = memory
        self._parts = list(_parts(address, self._nbytes, cut=crew.stages))
        self._num_parts = len(self._parts)
        self._slot: int | None = None  # of a part that the receiver has yet to read
        self._line = line
        if line is not None:
            line.append(self)

    def is_done(self) -> bool:
        """Tell whether it has come or gone; carries it on as far as that goes at once."""
        return self._go_on(waits=False)

    @property
    def has_begun(self) -> bool:
        """Whether a part of it has come or gone: no other message may use its memory then."""
        return len(self._parts) < self._num_parts

    def wait(self) -> None:
        """Return when it has come or gone."""
        self._go_on(waits=True)

    def __repr__(self) -> str:
        way = f"to rank {self._peer}" if self._sends else f"from rank {self._peer}"
        return f"{self._nbytes} bytes {way}, tag {self._tag}"

    def _go_on(self, *, waits: bool) -> bool:
        while self._parts:
            first = self if self._line is None else self._line[0]
            if not first.step(waits=waits):
                return False
        return True

    def step(self, *, waits: bool) -> bool:
        """Carry its next part on, being the first in line; tell whether that has come or gone."""
        act = self._send if self._sends else self._receive
        if not act(*self._parts[0], waits=waits):
            return False
        self._parts.pop(0)
        if not self._parts:
            self._keep = None
            if self._line is not None:
                self._line.popleft()
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
            text = f"rank {self._peer} sends {size} bytes, rank {self._crew.rank} receives {self}"
            self._crew.fail(Reason.DISAGREE, self._peer, text)
            raise DisagreeError(f"{text}.", "Both sides of a message must be equally long.")
        return size is not None

    def _raise(self, halt: Halted | None) -> None:
        if halt is not None:
            self._crew.raise_halt(halt, lambda _: repr(self))


Line = deque[Message]  # of those with one peer and tag that are not done, in their order


def _parts(address: int, nbytes: int, *, cut: bool) -> Iterator[tuple[int, int]]:
    if not cut or nbytes <= MAIL_INLINE:
        yield address, nbytes
        return
    for at in range(0, nbytes, MAIL_INLINE):
        yield address + at, min(MAIL_INLINE, nbytes - at)
