"""The commands of one rank between hosts as steps in one order, and their execution.

    Copy + Signal on a nic queue ─▶ one send       a Signal alone ─▶ posts the receives it grants
    Wait for another host ─▶ wait for a receive    a Call inside the host ─▶ the World

``linear_order.py`` puts commands into this order. Gloo sends to a posted receive only, which is
what a wait for a grant asks for.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from weft._core import reduce_into
from weft.runtime import World
from weft.runtime.prepared_cache import CallKey
from weft.runtime.prepared_schedule import Stamps
from weft.schedule import Schedule
from weft.torch.hosts.gloo_transport import Transfer
from weft.torch.hosts.inter_host_session import InterHostSession, wait_for
from weft.torch.hosts.intra_host import divide_by

Place = tuple[str, int, int]  # buffer of this rank, offset, bytes


class Send(NamedTuple):
    """Start to send bytes."""

    peer: int
    tag: int
    source: Place


class Post(NamedTuple):
    """Post a receive."""

    number: int
    peer: int
    tag: int
    place: Place


class Received(NamedTuple):
    """Wait for a posted receive."""

    number: int


class Sent(NamedTuple):
    """Wait for all sends so far."""


class Inside(NamedTuple):
    """Run a collective inside the host; binds are buffer numbers and places."""

    key: CallKey
    binds: tuple[tuple[int, Place], ...]


class Compute(NamedTuple):
    """Reduce memory of this rank; one source is copied."""

    dtype: str
    op: str
    sources: tuple[Place, ...]
    to: Place


class Divide(NamedTuple):
    """Divide a sum by the number of ranks."""

    x: Place


Step = Send | Post | Received | Sent | Inside | Compute | Divide


class StepSpan(NamedTuple):
    """A command: its queue, and the steps that it takes."""

    queue: str
    first: int
    last: int


class StepTimes(NamedTuple):
    """When each step began, and the end, in ns; and the stamps of the commands of each call."""

    begin: list[int]
    inside: list[Stamps | None]


@dataclass(frozen=True)
class LinearProgram:
    """The commands of one rank in one order; ``spans`` has those of each queue in theirs."""

    schedule: Schedule
    steps: list[Step]
    spans: list[StepSpan]
    scratch: tuple[tuple[str, int, int], ...]  # buffer, first byte and end in one piece of memory

    @property
    def scratch_bytes(self) -> int:
        """The bytes of all scratch buffers."""
        return max((stop for _, _, stop in self.scratch), default=0)

    def run(  # noqa: C901 - one case a step
        self,
        world: World,
        session: InterHostSession,
        tensors: Mapping[str, Tensor],
        dtype: torch.dtype,
        times: StepTimes | None = None,
    ) -> None:
        """Execute once on these buffers, as bytes."""
        posted: dict[int, list[Transfer]] = {}
        address = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        for step in self.steps:
            if times is not None:
                times.begin.append(time.monotonic_ns())
            match step:
                case Send(peer, tag, (buffer, offset, nbytes)):
                    session.send(tensors[buffer][offset : offset + nbytes], peer, tag)
                case Post(receive, peer, tag, (buffer, offset, nbytes)):
                    x = tensors[buffer][offset : offset + nbytes]
                    posted[receive] = session.recv(x, peer, tag)
                case Received(receive):
                    wait_for(posted.pop(receive))
                case Sent():
                    session.wait_for_sends()
                case Inside(key, binds):
                    bound = [(number, address[at[0]] + at[1], at[2]) for number, at in binds]
                    stamps = world.execute(key, bound, stamps=times is not None)
                    if times is not None:
                        times.inside.append(stamps)
                case Compute(kind, op, sources, (buffer, offset, nbytes)):
                    xs = [address[name] + start for name, start, _ in sources]
                    if xs != [address[buffer] + offset] or op != "sum":  # else input is output
                        reduce_into(address[buffer] + offset, xs, nbytes, kind, op)
                case Divide((buffer, offset, nbytes)):
                    x = tensors[buffer][offset : offset + nbytes].view(dtype)
                    divide_by(x, self.schedule.num_ranks)
        if times is not None:
            times.begin.append(time.monotonic_ns())
