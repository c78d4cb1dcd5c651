"""Messages from one rank to another."""

import time
from typing import Any

from torch import Tensor

from weft.torch.c10d import Work
from weft.torch.group import Group
from weft.torch.inner import by_device
from weft.torch.mailbox import LOOK, Mailbox
from weft.torch.plain import only, readable, writable
from weft.torch.work import Received

_PAUSE = 50e-6  # seconds between looks for a message from anyone


class Messages(Group):
    """Every method is one of c10d's; torch says what it means."""

    mailbox: Mailbox

    @by_device
    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> Work:
        """Send to a rank."""
        x = readable(only(tensors))
        letter = self.mailbox.post(x, dst, tag, sends=True)
        return self.work(tensors, letter, keep=x)

    @by_device
    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> Work:
        """Receive from a rank, in the order of its sends with that tag."""
        room, finish = writable(only(tensors))
        letter = self.mailbox.post(room, src, tag, sends=False)
        return self.work(tensors, letter, finish, room)

    @by_device
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """Receive from whoever sends first; its Work says who that was."""
        room, finish = writable(only(tensors))
        others = [rank for rank in range(self.size()) if rank != self.rank()]
        offers = {src: self.channel.probe(room, src, tag) for src in others}
        src = self._first_sender(offers, f"a message from any rank, tag {tag}")
        if finish is not None:
            finish()
        return Received(src)

    def _first_sender(self, offers: dict[int, Any], place: str) -> int:
        """Look until a message has come; one that comes in parts is then waited for."""
        channel = self.channel
        deadline = time.monotonic() + channel.world.timeout
        while time.monotonic() < deadline:
            look_again = time.monotonic() + LOOK
            while time.monotonic() < look_again:
                for src, offer in offers.items():
                    if offer.is_done() or offer.has_begun:
                        offer.wait()
                        return src
                time.sleep(_PAUSE)
            channel.require_sound()
            for src in offers:
                if not channel.is_alive(src):
                    channel.raise_died(src, place)
        return channel.raise_late(-1, place)
