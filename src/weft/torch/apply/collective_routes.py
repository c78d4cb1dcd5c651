"""Routes of a planned job: the backend and algorithm of each collective, with counters."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from weft.errors import UsageError
from weft.planner.plan import Choice
from weft.torch.backend.c10d import method_of
from weft.torch.backend.group_base import GroupBase
from weft.torch.c10d_collectives import BY_METHOD

Key = tuple[str, int]  # a collective and its bytes, as a Workload counts them
BACKENDS = ("weft", "gloo")


@dataclass
class CollectiveRoute:
    """What one collective of a step does, and how often it took each route."""

    kind: str
    nbytes: int
    choice: Choice | None
    backend: str = "weft"
    algorithm: str = ""
    by_plan: int = 0
    by_default: int = 0

    @property
    def is_serial(self) -> bool:
        """Whether it must not overlap with anything: the call waits for it."""
        return self.choice is not None and self.choice.strategy.kind.exclusive

    @classmethod
    def of(cls, choice: Choice) -> "CollectiveRoute":
        """Return the route of a planned choice."""
        backend = choice.strategy.backend or "weft"
        if backend not in BACKENDS:
            raise UsageError(
                f"plan: {choice.pair} uses backend {backend!r}, which has no CPU tensors.",
                f"Plan for this machine, with {' and '.join(BACKENDS)}.",
            )
        algorithm = choice.strategy.algorithm or ""
        algorithm = "" if algorithm == "auto" else algorithm
        return cls(choice.collective.kind, choice.collective.nbytes, choice, backend, algorithm)


class GroupRoutes:
    """Dispatches every collective of a weft group by plan.

    ``default`` sends all of them to Gloo, as without a plan.
    """

    def __init__(self, group: GroupBase, choices: Iterable[Choice]) -> None:
        self._group = group
        self.default = False
        self._planned: dict[Key, list[CollectiveRoute]] = defaultdict(list)
        numbered = [(op, choice) for choice in choices for op in choice.ops or (choice.op or 0,)]
        for _, choice in sorted(numbered, key=lambda pair: pair[0]):
            route = CollectiveRoute.of(choice)
            self._planned[route.kind, route.nbytes].append(route)
        self._bucketed = [
            route
            for route in self.routes_planned()
            if route.choice is not None and route.choice.strategy.bucket is not None
        ]
        self._others: dict[Key, CollectiveRoute] = {}
        self._turn: dict[Key, int] = defaultdict(int)
        self._gloo: Any = None

    def routes_planned(self) -> list[CollectiveRoute]:
        """Return the planned routes in their order."""
        return [route for routes in self._planned.values() for route in routes]

    def routes(self) -> list[CollectiveRoute]:
        """Return the planned routes, then those of unplanned calls."""
        return [*self.routes_planned(), *self._others.values()]

    def begin_step(self) -> None:
        """Reset the occurrence counters."""
        self._turn.clear()

    def start_gloo(self) -> None:
        """Create a Gloo group of the same ranks. Collective."""
        if self._gloo is None:
            ranks = dist.get_process_group_ranks(self._group)
            self._gloo = dist.new_group(
                ranks, timeout=self._group.timeout, backend="gloo", use_local_synchronization=True
            )

    def carry(self, name: str, method: Callable[..., Any], args: Any, options: Any) -> Any:
        """Execute one call of the group, by plan or by default."""
        if name not in BY_METHOD or _is_sparse(args[0]):  # whose bytes differ in every call
            return method(self._group, *args, **options)
        route = self._find(*counted(name, args, self._group.size()))
        if self.default:
            route.by_default += 1
            return self._by_gloo(name)(*args, **options)
        route.by_plan += 1
        work = self._by_plan(route, name, method, args, options)
        if route.is_serial:
            work.wait()
        return work

    def _by_plan(
        self, route: CollectiveRoute, name: str, method: Callable[..., Any], args: Any, options: Any
    ) -> Any:
        if route.backend == "gloo":
            return self._by_gloo(name)(*args, **options)
        channel = self._group.channel
        channel.algorithm = route.algorithm or None
        try:
            return method(self._group, *args, **options)
        finally:
            channel.algorithm = None

    def _find(self, kind: str, nbytes: int) -> CollectiveRoute:
        """Return the route of this occurrence; further ones start again at the first."""
        if planned := self._planned.get((kind, nbytes)):
            turn = self._turn[kind, nbytes]
            self._turn[kind, nbytes] = turn + 1
            return planned[turn % len(planned)]
        if (kind, nbytes) not in self._others:
            # A plan that changes DDP's buckets has the sizes from before the change.
            like = next(
                (r for r in self._bucketed if r.kind == kind), CollectiveRoute(kind, nbytes, None)
            )
            self._others[kind, nbytes] = replace(like, nbytes=nbytes, by_plan=0, by_default=0)
        return self._others[kind, nbytes]

    def _by_gloo(self, name: str) -> Any:
        """Return the method of that name of the Gloo group."""
        self.start_gloo()
        return method_of(self._gloo, name)


def counted(name: str, args: Sequence[Any], size: int) -> tuple[str, int]:
    """Return the collective and its bytes, as nccl-tests counts them."""
    known = BY_METHOD[name]
    if known.part is not None:
        return known.kind, _nbytes(args[known.part]) * size
    return known.kind, _nbytes(args[known.whole])


def _is_sparse(value: Any) -> bool:
    while isinstance(value, list) and value:
        value = value[0]
    return isinstance(value, Tensor) and value.layout is not torch.strided


def _nbytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(map(_nbytes, value))
