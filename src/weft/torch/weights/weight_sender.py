"""The sender of weight updates: the trainer's rank."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from weft._core import encode_changes
from weft.compress.codec_registry import codec_of
from weft.compress.delta import word_bytes
from weft.compress.frame import Octets
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.backend.group_functions import weft_group
from weft.torch.hosts.host_topology import HostTopology
from weft.torch.weights.weight_layout import Segment, layout_of, whole_codec
from weft.torch.weights.weight_protocol import (
    Held,
    UpdateOutcome,
    collective_runner,
    exchange_update,
)


@dataclass(frozen=True, slots=True)
class PublishedUpdate:
    """One update: its version, the bytes of the weights, the bytes that each link carried.

    ``full`` lists the ranks that got all values, because they held another version.
    """

    version: int
    nbytes: int
    wire_bytes: int
    full: tuple[int, ...]


class WeightSender:
    """Sends the weights of this rank to the receivers of a group, as often as they change.

    It keeps a copy of what it sent last and sends only what differs from it, bit for bit: for bf16
    weights of which 1 % changed, about 1 % of the bytes. ``group`` should be a group of its own:
    receivers stage updates in a thread while they compute. Every update looks at ``tensors`` anew:
    ``dict(model.named_parameters())`` follows parameters whose ``data`` was replaced (as by
    ``model.half()``), a ``state_dict`` made before does not.
    """

    def __init__(self, tensors: Mapping[str, Tensor], *, group: ProcessGroup | None = None) -> None:
        self._run = collective_runner(weft_group(group).channel)
        self._tensors = dict(tensors)
        self._layout, self._memory = layout_of(self._tensors)
        self._rank = dist.get_rank(group)
        self._copies = [memory.copy() for memory in self._memory]
        self._held = Held(_new_series(), 0)
        self._advanced = False  # whether the copies have the values of the update that is sent

    @property
    def version(self) -> int:
        """The version that was published last; 0 before the first."""
        return self._held.version

    def publish(self) -> PublishedUpdate:
        """Send the tensors as they are now; wait until all receivers have staged them.

        Collective: every receiver calls ``stage``. The tensors must not change meanwhile.
        """
        layout, self._memory = layout_of(self._tensors)
        if layout != self._layout:
            self._layout, self._held = layout, Held(_new_series(), 0)
            self._copies = [memory.copy() for memory in self._memory]
        found: list[UpdateOutcome] = []

        def act(topology: HostTopology) -> None:
            found.append(exchange_update(topology, self._rank, self._layout, self._held, self))

        try:
            self._run(act)
        except BaseException:  # the copies may have advanced: no receiver has their values
            self._held = Held(_new_series(), 0)
            raise
        (exchanged,) = found
        self._held = exchanged.held
        return PublishedUpdate(
            exchanged.held.version,
            self._layout.total_bytes,
            exchanged.wire_bytes,
            exchanged.full,
        )

    def start(self, *, is_current: bool) -> None:  # noqa: ARG002 - it defines what is current
        """Prepare for an update: the copies still hold what was sent last."""
        self._advanced = False

    def encode(self, piece: list[Segment], out: Octets, *, full: bool) -> int:
        """Write the frames of a piece: what changed, or all values."""
        size = 0
        self._advanced |= not full
        for segment in piece:
            tensor, start, stop = segment
            dtype, copy = self._layout.dtypes[tensor], self._copies[tensor][start:stop]
            if not self._advanced:  # no receiver could use what changed: that was not sent
                copy[:] = self._memory[tensor][start:stop]
            size += (
                codec_of(whole_codec(dtype), dtype).encode(copy, out[size:])
                if full
                else _encode_change(self._memory[tensor][start:stop], copy, out[size:], dtype)
            )
        return size

    def take(self, frames: Octets, *, full: bool) -> None:
        """Ignore pieces: they are this rank's own."""

    def needs_full(self) -> bool:
        """Return False: the sender has everything."""
        return False


def _encode_change(now: Octets, copy: Octets, out: Octets, dtype: str) -> int:
    """Write what changed since ``copy``, or everything if that is no longer; update ``copy``."""
    word = word_bytes(dtype)
    size = encode_changes(now, copy, out, word) if len(now) % word == 0 else 0
    if size == 0:
        copy[:] = now
        size = codec_of(whole_codec(dtype), dtype).encode(copy, out)
    return size


def _new_series() -> int:
    return 1 + secrets.randbelow((1 << 62) - 1)
