"""Routes of collectives on GPUs: the communicator of each, with counters and proofs of its path.

FSDP2 hands its all-gathers and reduce-scatters to ``PlannedAllGather`` and ``PlannedReduceScatter``
(``set_custom_all_gather``, ``set_custom_reduce_scatter``); a weft group hands over every call on
tensors of another device (``device_groups.by_device``).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from weft.torch.apply.collective_routes import counted
from weft.torch.backend.c10d import all_gather_single, method_of, reduce_scatter_single
from weft.torch.backend.group_base import GroupBase
from weft.torch.c10d_collectives import BY_METHOD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from weft.gpu.emit import PlannedCollective
    from weft.planner.plan import Choice
    from weft.torch.apply.gpu_job import GpuJob
    from weft.torch.backend.c10d import ProcessGroup, Work

PADDING = 0.02  # share of the bytes by which padded shards may differ from the plan's


@dataclass
class GpuRoute:
    """What one planned collective does, and how often it took each route.

    ``unregistered`` counts buffers that were not in symmetric memory: copy engines need that, and
    the library falls back without a word.
    """

    kind: str
    nbytes: int
    choice: Choice | None = None
    planned: PlannedCollective | None = None
    by_plan: int = 0
    by_default: int = 0
    unregistered: int = 0

    @property
    def path(self) -> str:
        """The path that must be proven, "" where any will do."""
        return "" if self.planned is None else self.planned.execution.path

    @property
    def needs_symmetric_memory(self) -> bool:
        """Whether its buffers must be in symmetric memory."""
        if self.planned is None:
            return False
        return any(knob.name == "config.cta_policy" for knob in self.planned.options)

    @property
    def is_serial(self) -> bool:
        """Whether kernels wait for it."""
        knobs = () if self.planned is None else self.planned.execution.of("weft")
        return any(knob.name == "wait" for knob in knobs)


@dataclass
class GpuRoutes:
    """The planned collectives of one group of ranks, and a communicator per set of options."""

    job: GpuJob
    planned: list[GpuRoute]
    communicators: dict[tuple[Any, ...], ProcessGroup]
    default: bool = False
    others: dict[tuple[str, int], GpuRoute] = field(default_factory=dict)
    turns: dict[tuple[str, int], int] = field(default_factory=lambda: defaultdict(int))

    @classmethod
    def of(
        cls,
        job: GpuJob,
        ranks: Sequence[int],
        planned: Iterable[tuple[Choice, PlannedCollective]],
    ) -> GpuRoutes:
        """Create the communicators of a group. Collective: every rank of it calls this."""
        routes: list[tuple[int, GpuRoute]] = []
        made: dict[tuple[Any, ...], ProcessGroup] = {}
        for choice, each in planned:
            if each.options and each.options not in made:
                made[each.options] = job.communicator(ranks, each.options)
            routes += [
                (op, GpuRoute(each.collective, each.nbytes, choice, each))
                for op in choice.ops or (choice.op or 0,)
            ]
        routes.sort(key=lambda pair: pair[0])
        return cls(job, [route for _, route in routes], made)

    def begin_step(self) -> None:
        """Reset the occurrence counters."""
        self.turns.clear()

    def routes(self) -> list[GpuRoute]:
        """Return the planned routes, then those of unplanned calls."""
        return [*self.planned, *self.others.values()]

    def find(self, kind: str, nbytes: int) -> GpuRoute:
        """Return the route of this occurrence; further ones start again at the first."""
        alike = [
            route
            for route in self.planned
            if route.kind == kind and abs(route.nbytes - nbytes) <= PADDING * route.nbytes
        ]
        if not alike:
            return self.others.setdefault((kind, nbytes), GpuRoute(kind, nbytes))
        key = kind, alike[0].nbytes
        turn = self.turns[key]
        self.turns[key] = turn + 1
        return alike[turn % len(alike)]

    def communicator_of(self, route: GpuRoute) -> ProcessGroup | None:
        """Return the communicator of a route, None for the one that the group has."""
        if self.default or route.planned is None:
            return None
        return self.communicators.get(route.planned.options)

    def issue(
        self, route: GpuRoute, output: torch.Tensor, group: ProcessGroup, call: Callable[..., Any]
    ) -> Any:
        """Carry a collective out on the communicator of its route."""
        chosen = self.communicator_of(route)
        if isinstance(group, GroupBase) and not output.is_cpu:
            group = group.device_group(output.device.type)  # not by its routes again
        if chosen is not None and route.needs_symmetric_memory:
            route.unregistered += not self.job.rendezvous(output, chosen)
        if self.default:
            route.by_default += 1
        else:
            route.by_plan += 1
        work = call(group if chosen is None else chosen)
        if route.is_serial and not self.default:
            if work is not None:
                work.wait()
            self.job.wait_for_all()
        return work

    def carry(self, name: str, group: ProcessGroup, args: Any, options: Any) -> Any:
        """Carry out a call of a weft group on tensors of another device."""
        if name not in BY_METHOD:
            return method_of(group, name)(*args, **options)
        kind, nbytes = counted(name, args, group.size())
        output = args[0]
        while isinstance(output, list):
            output = output[0]
        route = self.find(kind, nbytes)
        return self.issue(
            route, output, group, lambda chosen: method_of(chosen, name)(*args, **options)
        )


class PlannedAllGather:
    """The all-gathers of an FSDPModule, on the communicators of a plan (FSDP2's ``AllGather``)."""

    def __init__(self, routes: GpuRoutes) -> None:
        self.routes = routes
        self._upcoming: GpuRoute | None = None

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return the output buffer of the next call, in symmetric memory if its path needs that."""
        nbytes = prod(int(each) for each in size) * dtype.itemsize
        self._upcoming = route = self.routes.find("all_gather", nbytes)
        if route.needs_symmetric_memory and not self.routes.default:
            found: torch.Tensor = self.routes.job.symmetric(size, dtype, device)
            return found
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: ProcessGroup,
        async_op: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Work | None:
        """Gather the shards of all ranks. FSDP2 allocates right before it calls."""
        route, self._upcoming = self._upcoming, None
        found: Work | None = self.routes.issue(
            route or self.routes.find("all_gather", output_tensor.nbytes),
            output_tensor,
            group,
            lambda chosen: all_gather_single(
                output_tensor, input_tensor, group=chosen, async_op=async_op
            ),
        )
        return found


class PlannedReduceScatter:
    """The reduce-scatters of an FSDPModule, on the communicators of a plan."""

    def __init__(self, routes: GpuRoutes) -> None:
        self.routes = routes

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Return a staging buffer."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: ProcessGroup,
        op: Any,
        async_op: bool = False,  # noqa: FBT001, FBT002 - torch's signature
    ) -> Work | None:
        """Sum up, and keep this rank's shard."""
        found: Work | None = self.routes.issue(
            self.routes.find("reduce_scatter", input_tensor.nbytes),
            output_tensor,
            group,
            lambda chosen: reduce_scatter_single(
                output_tensor, input_tensor, op=op, group=chosen, async_op=async_op
            ),
        )
        return found
