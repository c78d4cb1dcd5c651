"""Messages from one rank to another, matched by tag."""

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, NoReturn

from weft._core import (
    P2P_INLINE_BYTES,
    FaultReason,
    open_p2p,
    p2p_bytes,
    p2p_is_sent,
    p2p_post,
    p2p_take,
    p2p_wait_sent,
)
from weft.errors import DisagreeError, UsageError
from weft.runtime.bound_memory import Bindable, address_and_size
from weft.runtime.communicator import Communicator
from weft.runtime.faults import AbortTuple


def open_p2p_slots(comm: Communicator) -> None:
    """Make room for the messages of a world. Collective."""
    nbytes = p2p_bytes(comm.num_ranks)
    block = comm.blocks.allocate(nbytes)
    if failure := comm.attempt("mail", lambda: comm.reserve(block, nbytes)):
        raise failure
    open_p2p(comm.member, comm.region(0) + block, comm.region(1) - comm.region(0))


class Message:
    """One that is sent or received: ``wait`` for it before its memory is touched.

    Nobody carries it on but the two ranks themselves, in ``wait`` and ``is_done``; what stands
    before it in its ``queue`` is carried on first. Where no rank may read another's memory, a
    long one goes in parts that fit a slot.

    Threads: any of them may wait for it or look at it once it is in a line (``MessageQueues.join``). One
    without a line is carried on by one thread at a time.
    """

    queue: "MessageQueue | None" = None

    def __init__(
        self, comm: Communicator, memory: Bindable, peer: int, tag: int, *, sends: bool
    ) -> None:
        address, self._nbytes = _checked(comm, memory, peer, tag, sends=sends)
        self._comm, self._peer, self._tag, self._sends = comm, peer, tag, sends
        self._keep: Any = memory
        self._parts = list(_parts(address, self._nbytes, cut=comm.stages))
        self._num_parts = len(self._parts)
        self._slot: int | None = None  # of a part that the receiver has yet to read

    def is_done(self) -> bool:
        """Return whether it has come or gone; carries it on as far as that goes at once."""
        return self._go_on(waits=False)

    @property
    def has_started(self) -> bool:
        """Whether a part of it has come or gone: no other message may use its memory then."""
        return len(self._parts) < self._num_parts

    def wait(self) -> None:
        """Return when it has come or gone."""
        self._go_on(waits=True)

    def __repr__(self) -> str:
        return _described(self._nbytes, self._peer, self._tag, sends=self._sends)

    @classmethod
    def posted(
        cls, comm: Communicator, memory: Bindable, peer: int, tag: int, slot: int
    ) -> "Message":
        """Make a message of one that was posted, so that its memory stays until it was read."""
        message = cls(comm, memory, peer, tag, sends=True)
        message._slot = slot
        return message

    def _go_on(self, *, waits: bool) -> bool:
        queue = self.queue
        while self._parts:
            if queue is None:
                if not self._step(waits=waits):
                    return False
            elif not queue.enter(self, waits=waits):
                return not self._parts
            else:
                try:
                    if not queue.first.step(waits=waits):
                        return False
                finally:
                    queue.leave()
        return True

    def step(self, *, waits: bool) -> bool:
        """Carry its next part on, being the first in line; tell whether that has come or gone."""
        if not self._step(waits=waits):
            return False
        if not self._parts and self.queue is not None:
            self.queue.messages.popleft()
        return True

    @property
    def is_complete(self) -> bool:
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
        member = self._comm.member
        if self._slot is None:
            slot, abort = p2p_post(member, self._peer, self._tag, address, nbytes, waits)
            self._raise(abort)
            if slot is None or nbytes <= P2P_INLINE_BYTES:
                return slot is not None
            self._slot = slot
        if waits:
            self._raise(p2p_wait_sent(member, self._peer, self._slot))
        elif not p2p_is_sent(member, self._peer, self._slot):
            return False
        self._slot = None
        return True

    def _receive(self, address: int, nbytes: int, *, waits: bool) -> bool:
        size, abort = p2p_take(self._comm.member, self._peer, self._tag, address, nbytes, waits)
        self._raise(abort)
        if size is not None and size != nbytes:
            _raise_other_size(self._comm, self._peer, size, repr(self))
        return size is not None

    def _raise(self, abort: AbortTuple | None) -> None:
        if abort is not None:
            self._comm.raise_abort(abort, lambda _: repr(self))


class MessageQueue:
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
            if not message.is_complete:
                return True
            self.leave()
            return False
        if not waits:
            return False
        with self._stepped:
            self._waiting += 1
            try:
                # Who has the line leaves it by its own deadline, and tells those that it sees here.
                while not message.is_complete:
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


class MessageQueues:
    """The lines of a world by direction, peer and tag. Threads: any.

    Where nothing stands in line and no message goes in parts, a call needs no line (``has``):
    the native core lets the threads that send and receive take turns.
    """

    _MANY = 64  # lines, after which those without a message are dropped

    def __init__(self) -> None:
        self._queues: dict[tuple[bool, int, int], MessageQueue] = {}
        self._lock = threading.RLock()  # a signal handler may send inside of a call
        self._stepped = threading.Condition()

    def has(self, key: tuple[bool, int, int]) -> bool:
        """Return whether a message stands in that line."""
        queue = self._queues.get(key)
        return queue is not None and bool(queue.messages)

    def join(self, message: Message, key: tuple[bool, int, int]) -> None:
        """Put a message at the end of its line."""
        with self._lock:  # or a line might be dropped that is about to have a message
            queue = self._queues.get(key)
            if queue is None:
                if len(self._queues) >= self._MANY:
                    self._queues = {
                        key: each for key, each in self._queues.items() if each.messages
                    }
                queue = self._queues[key] = MessageQueue(self._stepped)
            queue.messages.append(message)
            message.queue = queue

    def clear(self) -> None:
        """Forget all lines; threads that wait in one still end.

        Without the lock: a forked child does this, and who had the lock may be no thread of it.
        """
        self._queues = {}


def send_now(
    comm: Communicator, queues: MessageQueues, memory: Bindable, peer: int, tag: int
) -> None:
    """Send a message that nothing stands before, in one part."""
    address, nbytes = _checked(comm, memory, peer, tag, sends=True)
    member = comm.member
    slot, abort = p2p_post(member, peer, tag, address, nbytes, True)
    if abort is None and nbytes > P2P_INLINE_BYTES:
        assert slot is not None
        try:
            abort = p2p_wait_sent(member, peer, slot)
        except BaseException:  # a signal handler raised: the other rank may still read it
            queues.join(Message.posted(comm, memory, peer, tag, slot), (True, peer, tag))
            raise
    if abort is not None:
        comm.raise_abort(abort, lambda _: _described(nbytes, peer, tag, sends=True))


def receive_now(comm: Communicator, memory: Bindable, peer: int, tag: int) -> None:
    """Receive a message that nothing stands before, in one part."""
    address, nbytes = _checked(comm, memory, peer, tag, sends=False)
    size, abort = p2p_take(comm.member, peer, tag, address, nbytes, True)
    if abort is not None:
        comm.raise_abort(abort, lambda _: _described(nbytes, peer, tag, sends=False))
    if size != nbytes:
        assert size is not None
        _raise_other_size(comm, peer, size, _described(nbytes, peer, tag, sends=False))


def _checked(
    comm: Communicator, memory: Bindable, peer: int, tag: int, *, sends: bool
) -> tuple[int, int]:
    """Return address and bytes of a message's memory; raise where there can be no such message."""
    if not 0 <= peer < comm.num_ranks or peer == comm.rank:
        raise UsageError(f"rank {comm.rank} has no messages with rank {peer}.")
    if tag < 0:
        raise UsageError(f"a tag counts from zero, it is not {tag}.")
    comm.require_healthy()
    return address_and_size(memory, writable=not sends)


def _described(nbytes: int, peer: int, tag: int, *, sends: bool) -> str:
    return f"{nbytes} bytes {'to' if sends else 'from'} rank {peer}, tag {tag}"


def _raise_other_size(comm: Communicator, peer: int, size: int, message: str) -> NoReturn:
    text = f"rank {peer} sends {size} bytes, rank {comm.rank} receives {message}"
    comm.fail(FaultReason.DISAGREE, peer, text)
    raise DisagreeError(f"{text}.", "Both sides of a message must be equally long.")


def _parts(address: int, nbytes: int, *, cut: bool) -> Iterator[tuple[int, int]]:
    if not cut or nbytes <= P2P_INLINE_BYTES:
        yield address, nbytes
        return
    for at in range(0, nbytes, P2P_INLINE_BYTES):
        yield address + at, min(P2P_INLINE_BYTES, nbytes - at)
