"""Point-to-point messages between ranks of a world, matched by tag.

Short messages are copied into a slot of the receiver (eager); of long ones the slot holds the
address, and the receiver reads the sender's memory (rendezvous).
"""

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

_MAX_TAG = (1 << 63) - 1
_NAMED_TAGS = 8  # of messages that wait, in an error


def open_p2p_slots(comm: Communicator) -> None:
    """Allocate the message slots of a world. Collective."""
    nbytes = p2p_bytes(comm.num_ranks)
    block = comm.blocks.allocate(nbytes)
    if failure := comm.attempt("message slots", lambda: comm.reserve(block, nbytes)):
        raise failure
    open_p2p(comm.member, comm.region(0) + block, comm.region(1) - comm.region(0))


class Message:
    """A send or a receive: ``wait`` for it before its memory is reused.

    It makes progress only in ``wait`` and ``is_done`` of the two ranks; messages before it in its
    ``queue`` progress first. Where ranks may not read each other's memory, a long message is sent
    in parts that fit a slot.

    Threads: any of them may wait for it or test it once it is in a queue (``MessageQueues.join``).
    One that is in no queue is used by one thread at a time.
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
        self._slot: int | None = None  # of a part that the receiver has not read yet

    def is_done(self) -> bool:
        """Return whether it is complete, after making progress without waiting."""
        return self._progress(waits=False)

    @property
    def has_started(self) -> bool:
        """Whether a part of it was transferred: no other message may use its memory then."""
        return len(self._parts) < self._num_parts

    def wait(self) -> None:
        """Return when it is complete."""
        self._progress(waits=True)

    def __repr__(self) -> str:
        return _described(self._nbytes, self._peer, self._tag, sends=self._sends)

    @classmethod
    def posted(
        cls, comm: Communicator, memory: Bindable, peer: int, tag: int, slot: int
    ) -> "Message":
        """Create the message of a posted slot, which keeps its memory until it was read."""
        message = cls(comm, memory, peer, tag, sends=True)
        message._slot = slot
        return message

    def _progress(self, *, waits: bool) -> bool:
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
        """Transfer the next part of the first message of a queue; return whether it is complete."""
        if not self._step(waits=waits):
            return False
        if not self._parts and self.queue is not None:
            self.queue.messages.popleft()
        return True

    @property
    def is_complete(self) -> bool:
        """Whether all of it was transferred."""
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
        if abort is not None:
            self._comm.raise_abort(abort, lambda _: f"{self!r}{_waiting(self._comm, self._peer)}")
        if size is not None and size != nbytes:
            _raise_other_size(self._comm, self._peer, size, repr(self))
        return size is not None

    def _raise(self, abort: AbortTuple | None) -> None:
        if abort is not None:
            self._comm.raise_abort(abort, lambda _: repr(self))


class MessageQueue:
    """The incomplete messages with one peer and tag, in their order.

    Threads: one at a time advances the first message (``enter`` to ``leave``). It may wait in the
    native core for long; other threads that wait sleep until it has advanced, and those that only
    test do not wait for it.
    """

    __slots__ = ("_busy", "_entered", "_stepped", "_waiting", "messages")

    def __init__(self, stepped: threading.Condition) -> None:
        self.messages: deque[Message] = deque()
        self._busy = threading.RLock()  # reentrant, for signal handlers
        self._entered = False  # lets a signal handler see that it interrupted a step
        self._stepped = stepped
        self._waiting = 0

    @property
    def first(self) -> Message:
        """The message to advance; for the thread that entered."""
        return self.messages[0]

    def enter(self, message: Message, *, waits: bool) -> bool:
        """Enter the queue, unless ``message`` is complete or another thread is inside."""
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
                # The thread inside leaves by its own deadline and notifies those that wait here.
                while not message.is_complete:
                    if self._busy.acquire(blocking=False):
                        self._entered = True
                        return True
                    self._stepped.wait()
                return False
            finally:
                self._waiting -= 1

    def leave(self) -> None:
        """Leave the queue; wake a thread that waits for it."""
        self._entered = False
        self._busy.release()
        if self._waiting:
            with self._stepped:
                self._stepped.notify_all()

    @staticmethod
    def _refuse(message: Message, *, waits: bool) -> bool:
        if waits:
            raise UsageError(
                f"a signal handler cannot wait for {message}: the interrupted call has the same "
                "peer and tag.",
                "Use another tag.",
            )
        return False


class MessageQueues:
    """The message queues of a world by direction, peer and tag. Threads: any.

    If no message is pending and none is sent in parts, a call needs no queue (``has``): the native
    core synchronizes the threads that send and receive.
    """

    _MANY = 64  # queues, after which empty ones are dropped

    def __init__(self) -> None:
        self._queues: dict[tuple[bool, int, int], MessageQueue] = {}
        self._lock = threading.RLock()  # reentrant: a signal handler may send inside of a call
        self._stepped = threading.Condition()

    def has(self, key: tuple[bool, int, int]) -> bool:
        """Return whether a message is pending in that queue."""
        queue = self._queues.get(key)
        return queue is not None and bool(queue.messages)

    def join(self, message: Message, key: tuple[bool, int, int]) -> None:
        """Append a message to its queue."""
        with self._lock:  # else a queue could be dropped that is about to get a message
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
        """Drop all queues; threads that wait in one still end.

        Without the lock: a forked child calls this, and the owner of the lock may not exist in it.
        """
        self._queues = {}


def send_now(
    comm: Communicator, queues: MessageQueues, memory: Bindable, peer: int, tag: int
) -> None:
    """Send a message in one part, with no message pending before it."""
    address, nbytes = _checked(comm, memory, peer, tag, sends=True)
    member = comm.member
    slot, abort = p2p_post(member, peer, tag, address, nbytes, True)
    if abort is None and nbytes > P2P_INLINE_BYTES:
        assert slot is not None
        try:
            abort = p2p_wait_sent(member, peer, slot)
        except BaseException:  # from a signal handler: the other rank may still read it
            queues.join(Message.posted(comm, memory, peer, tag, slot), (True, peer, tag))
            raise
    if abort is not None:
        comm.raise_abort(abort, lambda _: _described(nbytes, peer, tag, sends=True))


def receive_now(comm: Communicator, memory: Bindable, peer: int, tag: int) -> None:
    """Receive a message in one part, with no message pending before it."""
    address, nbytes = _checked(comm, memory, peer, tag, sends=False)
    size, abort = p2p_take(comm.member, peer, tag, address, nbytes, True)
    if abort is not None:
        where = _described(nbytes, peer, tag, sends=False)
        comm.raise_abort(abort, lambda _: f"{where}{_waiting(comm, peer)}")
    if size != nbytes:
        assert size is not None
        _raise_other_size(comm, peer, size, _described(nbytes, peer, tag, sends=False))


def _checked(
    comm: Communicator, memory: Bindable, peer: int, tag: int, *, sends: bool
) -> tuple[int, int]:
    """Return address and bytes of a message's memory; raise if peer or tag are invalid."""
    if not 0 <= peer < comm.num_ranks or peer == comm.rank:
        raise UsageError(
            f"peer: rank {comm.rank} cannot exchange messages with rank {peer} of {comm.num_ranks}."
        )
    if not 0 <= tag <= _MAX_TAG:
        raise UsageError(f"tag: must be from 0 to 2^63 - 1 (got {tag}).")
    comm.require_healthy()
    return address_and_size(memory, writable=not sends)


def _described(nbytes: int, peer: int, tag: int, *, sends: bool) -> str:
    return f"{nbytes} bytes {'to' if sends else 'from'} rank {peer}, tag {tag}"


def _waiting(comm: Communicator, peer: int) -> str:
    """Name the tags of messages that a peer has sent and nobody has received, "" without any."""
    tags = comm.member.waiting_tags(peer, _NAMED_TAGS + 1)
    if not tags:
        return ""
    more = ", .." if len(tags) > _NAMED_TAGS else ""
    return f" (rank {peer} sent tag {', '.join(map(str, tags[:_NAMED_TAGS]))}{more})"


def _raise_other_size(comm: Communicator, peer: int, size: int, message: str) -> NoReturn:
    text = f"rank {peer} sends {size} bytes, rank {comm.rank} receives {message}"
    comm.fail(FaultReason.DISAGREE, peer, text)
    raise DisagreeError(f"{text}.", "Send and receive the same number of bytes.")


def _parts(address: int, nbytes: int, *, cut: bool) -> Iterator[tuple[int, int]]:
    if not cut or nbytes <= P2P_INLINE_BYTES:
        yield address, nbytes
        return
    for at in range(0, nbytes, P2P_INLINE_BYTES):
        yield address + at, min(P2P_INLINE_BYTES, nbytes - at)
