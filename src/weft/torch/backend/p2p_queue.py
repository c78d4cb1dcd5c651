"""The messages of a group that are in flight; waiting for one makes progress on all of them."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor

from weft.errors import NotDoneError
from weft.torch.backend.channel import Channel

# A short message usually arrives within the polls; a sleep of the kernel takes 50 us and more.
_SPINS = 200  # polls before a waiting rank sleeps between them
_SLEEP = 50e-6
_CHECK_SECONDS = 0.5  # seconds between checks that the peer is alive
# Seconds until a thread helps, and between its looks: most messages are waited for sooner.
_TO_HELP, _BETWEEN_HELP = 5e-3, 2e-3

Key = tuple[bool, int, int]  # sends, peer, tag


class P2PRequest:
    """A send or a receive; or a receive from the first of several ranks that sends."""

    def __init__(
        self, queue: "P2PQueue", messages: Mapping[Key, Any], memory: Tensor, description: str
    ) -> None:
        self._queue = queue
        self._memory = memory  # kept alive, even if the caller drops it
        self.messages = messages
        self.description = description
        self.done = False

    @property
    def peer(self) -> int:
        """The peer; -1 as long as it may be any rank."""
        return next(iter(self.messages))[1] if len(self.messages) == 1 else -1

    def is_done(self) -> bool:
        """Return whether it is complete."""
        self._queue.make_progress()
        return self.done

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is complete."""
        self._queue.wait_for(self, timeout)

    def try_progress(self, blocked: set[Key]) -> None:
        """Make progress unless an earlier message blocks it; block later ones while incomplete."""
        for key, message in self.messages.items():
            if key in blocked:
                continue
            self.done = message.is_done()
            if self.done or message.has_started:
                self.messages = {key: message}
                break
        if not self.done:
            blocked.update(self.messages)


def _help(queue: "weakref.ref[P2PQueue]", asked: threading.Event) -> None:
    """Serve a queue until it is freed."""
    while True:
        asked.wait()
        time.sleep(_TO_HELP)
        asked.clear()  # before the look: what is added later asks again
        while (here := queue()) is not None and here.help_for_a_while():
            del here
            time.sleep(_BETWEEN_HELP)
        if here is None or here.is_closed:
            return
        del here


_helped: "weakref.WeakSet[P2PQueue]" = weakref.WeakSet()


@atexit.register
def _end_threads() -> None:
    """End threads that may be in native code: the interpreter cannot end them there."""
    for queue in list(_helped):
        queue.close()


os.register_at_fork(after_in_child=_helped.clear)  # threads are not forked


class P2PQueue:
    """Makes progress on all messages of a rank, whichever it waits for.

    A long message is read by its receiver from the sender's memory and needs both of them. So two
    ranks that first send long messages to each other and then receive do not deadlock. A thread
    makes progress while this rank computes or is in a collective, for which its peer may be late
    because it waits for a message.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._requests: list[P2PRequest] = []
        self._lock = threading.Lock()
        self._asked = threading.Event()  # wakes the thread
        self._helper: threading.Thread | None = None
        self._closed = False

    def post(self, x: Tensor, peer: int, tag: int, *, sends: bool) -> P2PRequest:
        """Add a message, and make progress without waiting."""
        message = self._channel.message(x, peer, tag, sends=sends)
        return self._enqueue(P2PRequest(self, {(sends, peer, tag): message}, x, str(message)))

    def post_any(self, x: Tensor, peers: list[int], tag: int) -> P2PRequest:
        """Add a receive from the first of some ranks that sends."""
        messages = {(False, peer, tag): self._channel.probe(x, peer, tag) for peer in peers}
        return self._enqueue(P2PRequest(self, messages, x, f"a message from any rank, tag {tag}"))

    def _enqueue(self, request: P2PRequest) -> P2PRequest:
        with self._lock:
            self._requests.append(request)
        self.make_progress()
        if not request.done and not self._asked.is_set():
            self._ask_for_help()
        return request

    def close(self) -> None:
        """End the thread."""
        self._closed = True
        self._asked.set()
        if self._helper is not None and self._helper is not threading.current_thread():
            self._helper.join()

    @property
    def is_closed(self) -> bool:
        """Whether the thread shall end."""
        return self._closed

    def _ask_for_help(self) -> None:
        with self._lock:  # two threads may ask first
            if self._helper is None:
                # It does not keep the queue, and with it the world, alive.
                asked = self._asked
                queue = weakref.ref(self, lambda _: asked.set())
                helper = threading.Thread(
                    target=_help, args=(queue, asked), name="weft-messages", daemon=True
                )
                try:
                    helper.start()
                except RuntimeError:  # no thread left: waits make progress; the next message asks
                    return
                self._helper = helper
                _helped.add(self)
        self._asked.set()

    def help_for_a_while(self) -> bool:
        """Make progress once, for the thread; return whether it shall look again soon."""
        try:
            self.make_progress()
        except Exception:  # noqa: BLE001 - a wait for the message raises the error
            return False
        return bool(self._requests) and not self._closed

    def make_progress(self) -> None:
        """Test every message once; those of one peer and tag complete in order."""
        with self._lock:
            blocked: set[Key] = set()
            for request in self._requests:
                request.try_progress(blocked)
            self._requests = [request for request in self._requests if not request.done]

    def wait_for(self, request: P2PRequest, timeout: float | None) -> None:
        """Make progress until this message is complete."""
        begin = time.monotonic()
        limit = self._channel.world.timeout if timeout is None else timeout
        looked, tries = begin, 0
        while not request.is_done():
            tries += 1
            if tries < _SPINS:
                continue
            now = time.monotonic()
            if now - looked > _CHECK_SECONDS:
                self._require_alive(request)
                looked = now
            if now - begin > limit:
                self._raise_timeout(request, timeout)
            time.sleep(_SLEEP)

    def _raise_timeout(self, request: P2PRequest, timeout: float | None) -> NoReturn:
        channel = self._channel
        if timeout is None:  # the group's own timeout fails the group on all ranks
            channel.raise_late(request.peer, request.description)
        missing = channel.missing(request.peer) if request.peer >= 0 else ""
        text = (
            f"rank {channel.rank} timed out after {timeout:g} s waiting for {request.description}"
        )
        raise NotDoneError(f"{text}{missing}.", "It is still in flight: wait for it again.")

    def _require_alive(self, request: P2PRequest) -> None:
        channel = self._channel
        channel.require_healthy()
        for _, peer, _ in request.messages:
            if not channel.is_alive(peer) and not request.is_done():
                channel.raise_died(peer, request.description)
