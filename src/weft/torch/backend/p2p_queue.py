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


class Letter:
    """One message, in turn with those of its peer and tag; or the first that comes of several."""

    def __init__(
        self, mailbox: "Mailbox", messages: Mapping[Key, Any], memory: Tensor, place: str
    ) -> None:
        self._mailbox = mailbox
        self._memory = memory  # stays, even if whoever posted it drops it
        self.messages = messages
        self.place = place
        self.done = False

    @property
    def peer(self) -> int:
        """The rank at the other end; -1 as long as that may be anyone."""
        return next(iter(self.messages))[1] if len(self.messages) == 1 else -1

    def is_done(self) -> bool:
        """Tell whether it has come or gone."""
        self._mailbox.carry_on()
        return self.done

    def wait(self, timeout: float | None = None) -> None:
        """Return when it has come or gone."""
        self._mailbox.wait_for(self, timeout)

    def look(self, blocked: set[Key]) -> None:
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


class Mailbox:
    """Two ranks that send each other long messages first and receive then do not block.

    A long message is read by its receiver out of the sender's memory, so both have to look
    after it; a rank that waits for one of its messages looks after all of them.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._letters: list[Letter] = []
        self._lock = threading.Lock()

    def post(self, x: Tensor, peer: int, tag: int, *, sends: bool) -> Letter:
        """Take a message on, and do at once what can be done."""
        message = self._channel.message(x, peer, tag, sends=sends)
        return self._take_on(Letter(self, {(sends, peer, tag): message}, x, str(message)))

    def post_any(self, x: Tensor, peers: list[int], tag: int) -> Letter:
        """Take on a receive of what the first of some ranks sends."""
        messages = {(False, peer, tag): self._channel.probe(x, peer, tag) for peer in peers}
        return self._take_on(Letter(self, messages, x, f"a message from any rank, tag {tag}"))

    def _take_on(self, letter: Letter) -> Letter:
        with self._lock:
            self._letters.append(letter)
        self.carry_on()
        return letter

    def carry_on(self) -> None:
        """Look once after every message; those of one peer and tag go one after another."""
        with self._lock:
            blocked: set[Key] = set()
            for letter in self._letters:
                letter.look(blocked)
            self._letters = [letter for letter in self._letters if not letter.done]

    def wait_for(self, letter: Letter, timeout: float | None) -> None:
        """Look until this message is done."""
        begin = time.monotonic()
        limit = self._channel.world.timeout if timeout is None else timeout
        looked, tries = begin, 0
        while not letter.is_done():
            tries += 1
            if tries < _AWAKE:
                continue
            now = time.monotonic()
            if now - looked > _LOOK:
                self._require_alive(letter)
                looked = now
            if now - begin > limit:
                self._give_up(letter, timeout)
            time.sleep(_SLEEP)

    def _give_up(self, letter: Letter, timeout: float | None) -> NoReturn:
        channel = self._channel
        if timeout is None:  # the group's own timeout ends the group, everywhere
            channel.raise_late(letter.peer, letter.place)
        missing = channel.missing(letter.peer) if letter.peer >= 0 else ""
        text = f"rank {channel.rank} timed out after {timeout:g} s waiting for {letter.place}"
        raise NotDoneError(f"{text}{missing}.", "It goes on: wait for it again.")

    def _require_alive(self, letter: Letter) -> None:
        channel = self._channel
        channel.require_healthy()
        for _, peer, _ in letter.messages:
            if not channel.is_alive(peer) and not letter.is_done():
                channel.raise_died(peer, letter.place)
