"""Execution of schedules over hosts: nic queues run on the wire of torch.distributed.

A schedule of ``host_leaders`` is built, put into one order (``linear_order.py``) and executed in
steps (``nic_steps.py``).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from weft.collectives.host_leaders import HostLeaders
from weft.runtime import World
from weft.runtime.prepared_cache import MAX_PREPARED, CallKey
from weft.schedule import Schedule
from weft.torch.hosts.chunks import as_bytes
from weft.torch.hosts.host_map import HostMap
from weft.torch.hosts.inter_host_session import InterHostSession
from weft.torch.hosts.linear_order import linear_program
from weft.torch.hosts.nic_steps import LinearProgram

_MOST_KEPT = 64 << 20  # bytes of scratch that stay allocated between calls


class NicQueues:
    """Executes collectives of ``host_leaders`` on one rank; each is put into an order once.

    Threads: one at a time, as in a World.
    """

    def __init__(self, world: World, hosts: HostMap, rank: int) -> None:
        self._world, self._hosts, self._rank = world, hosts, rank
        self._programs: dict[Any, LinearProgram] = {}
        self._scratch = torch.empty(0, dtype=torch.uint8)

    def run(
        self,
        session: InterHostSession,
        build: Callable[..., Schedule],
        tensors: Mapping[str, Tensor],
        *,
        root: int = -1,
        **options: Any,
    ) -> None:
        """Execute ``build(leaders, bytes of the last tensor, **options)`` on contiguous tensors."""
        *_, last = tensors.values()
        key = (build, last.nbytes, root, *options.items())
        if (program := self._programs.pop(key, None)) is None:
            program = self.prepare(build, last.nbytes, root, **options)
            if len(self._programs) >= MAX_PREPARED:
                del self._programs[next(iter(self._programs))]
        self._programs[key] = program  # the latest use last
        scratch = self._scratch
        if len(scratch) < program.scratch_bytes:
            scratch = torch.empty(program.scratch_bytes, dtype=torch.uint8)
            if len(scratch) <= _MOST_KEPT:
                self._scratch = scratch  # the next calls use it again
        buffers = {name: as_bytes(tensor) for name, tensor in tensors.items()}
        for name, start, stop in program.scratch:
            buffers[name] = scratch[start:stop]
        program.run(self._world, session, buffers, last.dtype)

    def prepare(
        self, build: Callable[..., Schedule], nbytes: int, root: int, **options: Any
    ) -> LinearProgram:
        """Build this host's part of a schedule; calls inside the host are those of its World."""
        calls: dict[int, tuple[Schedule, CallKey]] = {}

        def inside(
            kind: str,
            num_ranks: int,
            size: int,
            *,
            dtype: str = "uint8",
            op: str = "",
            root: int = -1,
        ) -> Schedule:
            key = (kind, size, dtype, op, root, "")
            schedule = self._world.schedule_of(key, num_ranks)
            calls[id(schedule)] = schedule, key
            return schedule

        leaders = HostLeaders(self._hosts.ranks, root, inside, self._hosts.of[self._rank])
        schedule = build(leaders, nbytes, **options)
        return linear_program(schedule, self._rank, self._hosts.of, lambda s: calls[id(s)][1])
