"""``apply``: execute a plan in a running torch job, and report what was executed."""

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from weft._core import DispatchCache
from weft.errors import PlanError, UsageError, WeftError
from weft.hardware import Platform, is_calibrated, platform
from weft.planner.plan import Choice, Plan, read_plan
from weft.runtime import Engines
from weft.step import StepGraph
from weft.torch.apply.applied import Applied, merged_rows
from weft.torch.apply.collective_routes import CollectiveRoute, GroupRoutes
from weft.torch.apply.gpu_job import CudaJob, GpuJob
from weft.torch.apply.gpu_plan import AppliedOnGpus
from weft.torch.apply.module_swaps import ModuleSwap, bucket_of, check_buckets, fuse, is_fused
from weft.torch.apply.step_watch import StepWatch
from weft.torch.backend.c10d import ProcessGroup
from weft.torch.backend.compression import Compression, compress
from weft.torch.backend.group_base import GroupBase
from weft.torch.backend.group_functions import weft_group
from weft.torch.capture.captured_collectives import GroupNames
from weft.torch.hosts.multi_host_channel import MultiHostChannel


def apply(
    plan: Plan | str | Path,
    model: nn.Module | None = None,
    *,
    groups: Iterable[ProcessGroup] = (),
    workload: StepGraph | None = None,
    on: Platform | str | None = None,
    watch: bool = True,
    job: GpuJob | None = None,
) -> Applied:
    """Execute the collectives of a job as a plan says.

    Every rank makes the same call. A plan for CPU ranks needs a weft group as the default group,
    before optimizers and DDP are created: every EmbeddingBags in ``model`` is replaced if the plan
    fuses it. A plan for GPUs needs NCCL or RCCL, after ``fully_shard`` and before DDP: its
    communicators, symmetric memory, carve-outs and Inductor settings are put in place. ``groups``
    are further weft groups of the plan. Raises PlanError for another machine, software or number of
    ranks, and for another ``workload`` if it is given. This machine is ``here`` after calibration,
    else ``cpu``, unless ``on`` names another platform or its file: a plan that was made with
    ``--on result.toml`` needs ``on="result.toml"``. ``job`` stands in for CUDA in tests.

    Call ``step()`` of the result after each training step: if steps contradict the plan, the job
    returns to Gloo, unless ``watch`` is false. ``report()`` states how every collective was
    executed.
    """
    found = plan if isinstance(plan, Plan) else read_plan(Path(plan))
    if isinstance(on, str) and on.endswith(".toml"):
        on = platform(on, num_ranks=found.num_ranks)
    machine = _gpus_of(found, on)
    if machine is not None:
        return AppliedOnGpus(found, machine, job or CudaJob(), model, groups, watch=watch)
    world = weft_group(None)
    _check(found, world, workload, on)
    return AppliedOnCores(
        found, [world, *(weft_group(group) for group in groups)], model, watch=watch
    )


class GroupState(NamedTuple):
    """The attributes of a group that a plan changes."""

    dispatch_cache: DispatchCache | None
    compression: Compression | None
    engines: Engines

    @classmethod
    def of(cls, group: GroupBase) -> "GroupState":
        """Return the current state of a group."""
        return cls(group.dispatch_cache, group.compression, group.channel.world.engines)


class AppliedOnCores(Applied):
    """A plan for CPU ranks in execution: routes of the groups, fused modules, a monitor."""

    def __init__(
        self, plan: Plan, groups: list[GroupBase], model: nn.Module | None, *, watch: bool = True
    ) -> None:
        self.plan = plan
        self._groups = groups
        self._before = [GroupState.of(group) for group in groups]
        self._swaps: list[ModuleSwap] = fuse(plan, model)
        self.bucket = bucket_of(plan)
        check_buckets(self.bucket, model)
        self._watch = StepWatch(plan, self._slowest, self._switch, differs=_differs(plan))
        self._watches, self._began = watch, 0.0
        self._steps = 0
        self._routes = [
            self._set_up(group, [c for c in plan.choices if c.collective.group == _name(group)])
            for group in groups
        ]

    @property
    def fused(self) -> tuple[nn.Module, ...]:
        """The fused modules that replace plain ones."""
        return tuple(swap.fused for swap in self._swaps if swap.is_fused)

    def step(self) -> None:
        """Mark the end of a step; its duration is compared with the plan."""
        now = time.perf_counter()
        for routes in self._routes:
            routes.begin_step()
        self._steps += 1
        if self._steps == 2:  # in its first step DDP has not ordered its buckets yet
            self._require_met()
        if self._watches and self._steps > 1:
            self._watch.note(now - self._began)
        self._began = time.perf_counter()

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per collective: what was planned, how it was executed, and how often."""
        return [
            {"step": self.state, **row}
            for group, routes in zip(self._groups, self._routes, strict=True)
            for row in merged_rows(self._row(group, route) for route in routes.routes())
        ]

    def _row(self, group: GroupBase, route: CollectiveRoute) -> dict[str, Any]:
        choice = route.choice
        if choice is not None and is_fused(choice) and self._swaps:
            path = "fused: EmbeddingAllToAll"
        elif route.backend == "gloo":
            path = "gloo"
        elif isinstance(group.channel, MultiHostChannel):
            path = f"weft: {group.channel.paths().get(route.kind, 'gloo between hosts')}"
        else:
            used = route.algorithm or group.channel.world.algorithm_of(route.kind, route.nbytes)
            path = f"weft: {used}"
        return {
            "collective": route.kind,
            "nbytes": route.nbytes,
            "planned": "nothing" if choice is None else choice.strategy.name,
            "path": path,
            "why": "not in the plan: default algorithm" if choice is None else choice.why,
            "by_plan": route.by_plan,
            "by_default": route.by_default,
        }

    def remove(self) -> None:
        """Restore the groups; fused modules stay in the model."""
        for group, before in zip(self._groups, self._before, strict=True):
            group.routes = None
            group.dispatch_cache = before.dispatch_cache
            group.compression = before.compression
            group.channel.drain()
            group.channel.world.set_engines(before.engines)

    def _set_up(self, group: GroupBase, choices: list[Choice]) -> GroupRoutes:
        routes = GroupRoutes(group, choices)
        codec = _only([c.strategy.codec for c in choices if c.strategy.codec])
        for choice in choices:
            if choice.strategy.codec and choice.collective.kind != "broadcast":
                raise PlanError(
                    f"plan: {choice.pair} uses codec {codec}; only broadcasts can be encoded.",
                    "Plan again with an error budget of 0.",
                )
        if codec is not None:
            compress(group, broadcast=codec)
        engines = _engines_of(choices)
        if engines is not None and not isinstance(group.channel, MultiHostChannel):
            group.channel.drain()
            group.channel.world.set_engines(engines)
        if any(route.backend == "gloo" for route in routes.routes()):
            routes.start_gloo()
        # The dispatch cache would bypass the routes.
        group.routes = routes
        group.dispatch_cache = None
        return routes

    def _require_met(self) -> None:
        """Raise if the job calls none of the plan's collectives."""
        routes = [route for each in self._routes for route in each.routes()]
        planned = [r for r in routes if r.choice is not None and not is_fused(r.choice)]
        if planned and not any(r.by_plan for r in planned):
            issued = ", ".join(f"{r.kind} of {r.nbytes} bytes" for r in routes if r.by_plan)
            self.remove()
            raise PlanError(
                f"plan: none of the {len(planned)} collectives of {self.plan.workload} was "
                f"called in two steps (called: {issued or 'none'}).",
                "Capture this job and plan again, with the same batch and buckets.",
            )

    def _slowest(self, seconds: float) -> float:
        """Return the duration of the slowest rank; the collective bypasses the routes."""
        found = torch.tensor([seconds], dtype=torch.float64)
        self._groups[0].channel.all_reduce(found, "max", async_op=False)
        return float(found)

    def _switch(self, default: bool) -> None:  # noqa: FBT001 - a switch has one argument
        for group, routes in zip(self._groups, self._routes, strict=True):
            group.channel.drain()
            routes.start_gloo()
            routes.default = default
        for swap in self._swaps:
            if swap.can_go_back:
                swap.put(fused=not default)


def _check(
    plan: Plan, group: GroupBase, workload: StepGraph | None, on: Platform | str | None
) -> None:
    if plan.num_ranks != group.size():
        raise PlanError(
            f"plan: made for {plan.num_ranks} ranks (got {group.size()}).",
            f"Create a plan with weft plan --ranks {group.size()}.",
        )
    machine: Platform | str = on or ("here" if is_calibrated() else "cpu")
    name = machine if isinstance(machine, str) else machine.name
    if plan.platform != name:
        raise PlanError(
            f"plan: made for {plan.platform} (this machine is {name}).",
            f"Create a plan with weft plan --on {name}, or pass this machine's platform as on=.",
        )
    if workload is not None:
        if isinstance(machine, str):
            machine = platform(name, num_ranks=plan.num_ranks)
        plan.check_for(workload, machine)


def _gpus_of(plan: Plan, on: Platform | str | None) -> Platform | None:
    """Return the GPUs that a plan was made for, None for a plan for CPU ranks."""
    made_for = on if isinstance(on, Platform) and on.name == plan.platform else None
    if made_for is None:
        with suppress(WeftError):  # an unknown name is compared later
            made_for = platform(plan.platform, num_ranks=plan.num_ranks)
    if made_for is None and not isinstance(dist.group.WORLD, GroupBase):
        raise PlanError(
            f"plan: made for {plan.platform}, which is not in the catalogue.",
            'Pass the file that it was made with: weft.torch.apply(plan, model, on="result.toml").',
        )
    has_gpus = made_for is not None and made_for.device is not None and not made_for.device.is_core
    return made_for if has_gpus else None


def _differs(plan: Plan) -> bool:
    """Return whether a plan differs from torch with Gloo."""
    return any(is_fused(choice) or choice.strategy.backend != "gloo" for choice in plan.choices)


def _name(group: GroupBase) -> str:
    return GroupNames(dist.get_rank(), dist.get_world_size()).name_of(
        dist.get_process_group_ranks(group)
    )


def _engines_of(choices: list[Choice]) -> Engines | None:
    """Return the number and the priority of the engines in a plan, equal for all choices."""
    wanted = [
        (how.engines, how.priority)
        for how in (choice.strategy for choice in choices)
        if how.engines is not None or how.priority is not None
    ]
    number, nice = _only(wanted) or (None, None)
    if number is None and nice is None:
        return None
    return Engines(number=None if number is None else int(number), nice=nice)


def _only(values: list[Any]) -> Any:
    """Return the value that all have in common, None for an empty list."""
    if len(set(values)) > 1:
        raise UsageError(
            f"plan: conflicting settings of one group "
            f"({' and '.join(map(str, sorted(set(values), key=str)))}).",
            "Plan again.",
        )
    return values[0] if values else None
