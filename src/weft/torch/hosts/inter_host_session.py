"""The transfers of one collective between hosts, with a check that all hosts make the same call."""

from collections.abc import Iterable
from types import TracebackType

import torch
from torch import Tensor

from weft.errors import DisagreeError
from weft.torch.hosts.gloo_transport import GlooTransport, Transfer
from weft.torch.hosts.host_map import HostMap

HEADER, FIRST, SECOND, LENGTH = 1, 2, 3, 4  # tags: messages of one tag arrive in order
_HEADER_BYTES = 192  # of the text of a call, which is cut to a fixed length


class InterHostSession:
    """The transfers of one rank during a call; leaving it waits for all sends.

    Each host's leader compares its call with that of the previous host before it receives. In a
    ring, either all calls are equal or one leader finds the difference.
    """

    def __init__(
        self, transport: GlooTransport | None, hosts: HostMap, rank: int, call: str
    ) -> None:
        self._rank, self.call = rank, call
        self._sent: list[Transfer] = []
        self._header: tuple[Transfer, Tensor] | None = None
        if transport is None:  # one host: nothing is sent
            return
        self._transport = transport
        host = hosts.of[rank]
        if rank == hosts.leader(host):
            before, after = (hosts.leader((host + step) % hosts.num) for step in (-1, 1))
            self._compare(before, after)

    def send(self, x: Tensor, to: int, tag: int = FIRST) -> list[Transfer]:
        """Send a tensor, if it has elements; the caller keeps it until the session ends."""
        transfers = [self._transport.send(x, to, tag)] if x.numel() else []
        self._sent += transfers
        return transfers

    def recv(self, x: Tensor, source: int, tag: int = FIRST) -> list[Transfer]:
        """Receive a tensor, if it has elements; the caller waits for it."""
        self._require_same()
        return [self._transport.recv(x, source, tag)] if x.numel() else []

    def __enter__(self) -> "InterHostSession":  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.wait_for_sends()

    def wait_for_sends(self) -> None:
        """Wait until the memory of all sends may be changed."""
        self._require_same()
        wait_for(self._sent)

    def _compare(self, before: int, after: int) -> None:
        # Gloo matches transfers by tag and length only: without the header, different calls on two
        # hosts would exchange their bytes.
        text = self.call.encode()[:_HEADER_BYTES].ljust(_HEADER_BYTES)
        mine = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        theirs = torch.empty_like(mine)
        self._header = (self._transport.recv(theirs, before, HEADER), theirs)
        self._sent.append(self._transport.send(mine, after, HEADER))

    def _require_same(self) -> None:
        if self._header is None:
            return
        (transfer, theirs), self._header = self._header, None
        transfer.wait()
        call = bytes(theirs.numpy()).decode(errors="replace").rstrip()
        if call != self.call[:_HEADER_BYTES].rstrip():
            raise DisagreeError(
                f"rank {self._rank} calls {self.call}, rank {transfer.peer} calls {call}",
                "Every rank must make the same calls in the same order.",
            )


def wait_for(transfers: Iterable[Transfer]) -> None:
    """Wait for all of them."""
    for transfer in transfers:
        transfer.wait()
