"""The messages of a group that are under way, all carried on by whoever waits for one."""

import threading
import time
from collections.abc import Mapping
from typing import Any, NoReturn

from torch import Tensor

from weft.errors import NotDoneError
from weft.torch.backend.channel import Channel

_AWAKE = 200  # looks before a waiting rank sleeps between them
_SLEEP = 50e-6
_LOOK = 0.5  # seconds between looks whether the other rank lives

Key = tuple[bool, int, int]  # sends, peer, tag


class P2PRequest:
    """One message, in turn with those of its peer and tag; or the first that comes of several."""

    def __init__(
        self, queue: "P2PQueue", messages: Mapping[Key, Any], memory: Tensor, description: str
    ) -> None:
        self._queue = queue
        self._memory = memory  # stays, even if whoever posted it drops it
        self.messages = messages
        self.description = description
        self.done = False

    @property
    def peer(self) -> int:
        """The rank at the other end; -1 as long as that may be anyone."""
        return next(iter(self.messages))[1] if len(self.messages) == 1 else -1

    def is_done(self) -> bool:
        """Tell whether it has come or gone."""
        self._queue.make_progress()
        return self.done

    def wait(self, timeout: float | None = None) -> None:
        """Return when it has come or gone."""
        self._queue.wait_for(self, timeout)

    def try_progress(self, blocked: set[Key]) -> None:
        """Carry it on, but not past those before it; block those behind it as long as it lasts."""
        for key, message in self.messages.items():
            if key in blocked:
                continue
            self.done = message.is_done()
            if self.done or message.has_started:
                self.messages = {key: message}
                break
        if not self.done:
            blocked.update(self.messages)


class P2PQueue:
    """Two ranks that send each other long messages first and receive then do not block.

    A long message is read by its receiver out of the sender's memory, so both have to look
    after it; a rank that waits for one of its messages looks after all of them.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._requests: list[P2PRequest] = []
        self._lock = threading.Lock()

    def post(self, x: Tensor, peer: int, tag: int, *, sends: bool) -> P2PRequest:
        """Take a message on, and do at once what can be done."""
        message = self._channel.message(x, peer, tag, sends=sends)
        return self._enqueue(P2PRequest(self, {(sends, peer, tag): message}, x, str(message)))

    def post_any(self, x: Tensor, peers: list[int], tag: int) -> P2PRequest:
        """Take on a receive of what the first of some ranks sends."""
        messages = {(False, peer, tag): self._channel.probe(x, peer, tag) for peer in peers}
        return self._enqueue(P2PRequest(self, messages, x, f"a message from any rank, tag {tag}"))

    def _enqueue(self, request: P2PRequest) -> P2PRequest:
        with self._lock:
            self._requests.append(request)
        self.make_progress()
        return request

    def make_progress(self) -> None:
        """Look once after every message; those of one peer and tag go one after another."""
        with self._lock:
            blocked: set[Key] = set()
            for request in self._requests:
                request.try_progress(blocked)
            self._requests = [request for request in self._requests if not request.done]

    def wait_for(self, request: P2PRequest, timeout: float | None) -> None:
        """Look until this message is done."""
        begin = time.monotonic()
        limit = self._channel.world.timeout if timeout is None else timeout
        looked, tries = begin, 0
        while not request.is_done():
            tries += 1
            if tries < _AWAKE:
                continue
            now = time.monotonic()
            if now - looked > _LOOK:
                self._require_alive(request)
                looked = now
            if now - begin > limit:
                self._raise_timeout(request, timeout)
            time.sleep(_SLEEP)

    def _raise_timeout(self, request: P2PRequest, timeout: float | None) -> NoReturn:
        channel = self._channel
        if timeout is None:  # the group's own timeout ends the group, everywhere
            channel.raise_late(request.peer, request.description)
        missing = channel.missing(request.peer) if request.peer >= 0 else ""
        text = (
            f"rank {channel.rank} timed out after {timeout:g} s waiting for {request.description}"
        )
        raise NotDoneError(f"{text}{missing}.", "It goes on: wait for it again.")

    def _require_alive(self, request: P2PRequest) -> None:
        channel = self._channel
        channel.require_healthy()
        for _, peer, _ in request.messages:
            if not channel.is_alive(peer) and not request.is_done():
                channel.raise_died(peer, request.description)
