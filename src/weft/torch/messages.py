"""Messages from one rank to another, through the group's store: buffered, in order, by tag."""

import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed import DistError

from weft.errors import DisagreeError, RankDiedError, RunTimeoutError
from weft.torch.c10d import Work
from weft.torch.group import Group
from weft.torch.inner import by_device
from weft.torch.plain import Call, only, readable, writable

_PIECE = 4 << 20  # bytes: a store takes values up to 8 MiB
_LOOK = timedelta(seconds=1)  # between looks whether the sender lives
_POLL = 0.0005


class Messages(Group):
    """Every method is one of c10d's; torch says what it means."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._sent: Counter[tuple[int, int]] = Counter()
        self._awaited: Counter[tuple[int, int]] = Counter()

    @by_device
    def send(self, tensors: list[Tensor], dst: int, tag: int = 0) -> Work:
        """Send to a rank; the tensor may be changed at once."""
        number = self._sent[dst, tag]
        self._sent[dst, tag] += 1
        message = _bytes_of(readable(only(tensors)))
        key = _key(self.rank(), dst, tag, number)
        for at in range(_PIECE, len(message), _PIECE):
            self.store.set(f"{key}/{at}", message[at : at + _PIECE])  # type: ignore[arg-type]
        head = len(message).to_bytes(8, "little") + message[:_PIECE]
        self.store.set(key, head)  # type: ignore[arg-type]
        return self.work(tensors)

    @by_device
    def recv(self, tensors: list[Tensor], src: int, tag: int = 0) -> Work:
        """Receive from a rank, in the order of its sends with that tag."""
        number = self._awaited[src, tag]
        self._awaited[src, tag] += 1
        room, finish = writable(only(tensors))
        return self.work(tensors, Call([Receipt(self, room, src, tag, number)], finish))

    @by_device
    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Work:
        """Receive from whoever sends first; its Work says who that was."""
        deadline = time.monotonic() + self.timeout.total_seconds()
        while time.monotonic() < deadline:
            for src in range(self.size()):
                key = _key(src, self.rank(), tag, self._awaited[src, tag])
                if src != self.rank() and self.store.check([key]):
                    work = self.recv(tensors, src, tag)
                    work.wait()
                    work.source = src
                    return work  # type: ignore[no-any-return]
            time.sleep(_POLL)
        raise RunTimeoutError(f"rank {self.rank()}: nobody sent within {self.timeout}.")


class Receipt:
    """A message that is awaited."""

    def __init__(self, group: Messages, room: Tensor, src: int, tag: int, number: int) -> None:
        self._group, self._room, self._src = group, room, src
        self._key = _key(src, group.rank(), tag, number)
        self._done = False

    def is_done(self) -> bool:
        """Whether the message is there."""
        return self._done or self._group.store.check([self._key])

    def wait(self, timeout: float | None = None) -> None:
        """Take the message."""
        limit = self._group.timeout.total_seconds() if timeout is None else timeout
        if not self._comes(limit):
            raise RunTimeoutError(
                f"rank {self._group.rank()} waited {limit:g} s for a message of rank {self._src}."
            )
        if not self._done:
            self._take()
            self._done = True

    def _comes(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.is_done():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            try:
                self._group.store.wait([self._key], min(_LOOK, timedelta(seconds=left)))
            except DistError:
                self._require_alive()
        return True

    def _require_alive(self) -> None:
        world = self._group.channel.world
        world.require_sound()
        pid = world.member.pid(self._src)
        if not Path(f"/proc/{pid}").exists() and not self.is_done():
            raise RankDiedError(
                f"rank {self._src} died (pid {pid}) while rank {self._group.rank()} waited for "
                "its message.",
                f"Look into the output of rank {self._src} for the reason.",
            )

    def _take(self) -> None:
        store, want = self._group.store, self._room.numel() * self._room.element_size()
        head = store.get(self._key)
        nbytes = int.from_bytes(head[:8], "little")
        pieces = [head[8:]]
        for at in range(_PIECE, nbytes, _PIECE):
            pieces.append(store.get(f"{self._key}/{at}"))
            store.delete_key(f"{self._key}/{at}")
        store.delete_key(self._key)
        if nbytes != want:
            raise DisagreeError(
                f"rank {self._src} sent {nbytes} bytes, rank {self._group.rank()} wants {want}.",
                "Both sides of a message must agree on its shape and dtype.",
            )
        if nbytes:
            taken = torch.frombuffer(bytearray(b"".join(pieces)), dtype=torch.uint8)
            self._room.view(-1).view(torch.uint8).copy_(taken)


def _key(src: int, dst: int, tag: int, number: int) -> str:
    return f"message/{src}/{dst}/{tag}/{number}"


def _bytes_of(tensor: Tensor) -> bytes:
    if not tensor.numel():
        return b""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes()
