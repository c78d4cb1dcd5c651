"""The messages of a group that are under way, all carried on by whoever waits for one."""

import threading
import time
from typing import NoReturn

from torch import Tensor

from weft.errors import RunTimeoutError
from weft.runtime.mail import Message
from weft.torch.channel import Channel

_AWAKE = 200  # looks before a waiting rank sleeps between them
_SLEEP = 50e-6
LOOK = 0.5  # seconds between looks whether the other rank lives

Key = tuple[bool, int, int]  # sends, peer, tag


class Letter:
    """One message, in turn with those of its peer and tag."""

    def __init__(self, mailbox: "Mailbox", message: Message, key: Key) -> None:
        self._mailbox = mailbox
        self.message = message
        self.key = key
        self.done = False

    def is_done(self) -> bool:
        """Tell whether it has come or gone."""
        self._mailbox.carry_on()
        return self.done

    def wait(self, timeout: float | None = None) -> None:
        """Return when it has come or gone."""
        self._mailbox.wait_for(self, timeout)


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
        letter = Letter(self, message, (sends, peer, tag))
        with self._lock:
            self._letters.append(letter)
        self.carry_on()
        return letter

    def carry_on(self) -> None:
        """Look once after every message; those of one peer and tag go one after another."""
        with self._lock:
            blocked: set[Key] = set()
            for letter in self._letters:
                if letter.key not in blocked:
                    letter.done = letter.message.is_done()
                    if not letter.done:
                        blocked.add(letter.key)
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
            if now - looked > LOOK:
                self._require_alive(letter)
                looked = now
            if now - begin > limit:
                self._give_up(letter, timeout)
            time.sleep(_SLEEP)

    def _give_up(self, letter: Letter, timeout: float | None) -> NoReturn:
        channel, peer = self._channel, letter.key[1]
        if timeout is None:  # the group's own timeout ends the group, everywhere
            channel.raise_late(peer, str(letter.message))
        raise RunTimeoutError(
            f"rank {channel.rank} waited {timeout:g} s for {letter.message!r}"
            f"{channel.missing(peer)}."
        )

    def _require_alive(self, letter: Letter) -> None:
        channel, peer = self._channel, letter.key[1]
        channel.require_sound()
        if not channel.is_alive(peer) and not letter.is_done():
            channel.raise_died(peer, str(letter.message))
