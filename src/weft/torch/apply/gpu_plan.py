"""A plan for GPUs in execution: communicators, symmetric memory, carve-outs, Inductor, and proof.

    plan ──▶ knobs (weft.gpu.knobs) ──▶ checked on every rank ──▶ set ──▶ watched, proven, undone

FSDP2 modules get their collectives through ``GpuRoutes``, a weft group all its calls on CUDA
tensors, DDP through ``ddp``. ``switch`` undoes all of it at once, so steps that contradict the plan
go back to what torch does by itself.
"""

from __future__ import annotations

import os
import warnings
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule

from weft.errors import PlanError
from weft.gpu.collective_paths import PathVerdict, judge, read_nccl_log
from weft.hardware.software_stack import SoftwareStack
from weft.planner.plan_knobs import plan_knobs
from weft.torch.apply.applied import Applied, merged_rows
from weft.torch.apply.gpu_routes import GpuRoutes, PlannedAllGather, PlannedReduceScatter
from weft.torch.apply.module_swaps import bucket_of
from weft.torch.apply.step_watch import WARM, PlanWarning, StepWatch
from weft.torch.backend.group_base import GroupBase

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from weft.gpu.collective_paths import CollectivePath
    from weft.gpu.emit import PlannedKnobs
    from weft.gpu.knobs import Knob
    from weft.hardware import Platform
    from weft.planner.plan import Plan
    from weft.torch.apply.gpu_job import GpuJob
    from weft.torch.apply.gpu_routes import GpuRoute
    from weft.torch.backend.c10d import ProcessGroup


_LIBRARIES = {"NVIDIA": "nccl", "AMD": "rocm"}  # what a detected stack has of a vendor


class AppliedOnGpus(Applied):
    """A plan for GPUs in execution."""

    def __init__(
        self,
        plan: Plan,
        machine: Platform,
        job: GpuJob,
        model: nn.Module | None,
        groups: Iterable[ProcessGroup] = (),
        *,
        watch: bool = True,
    ) -> None:
        self.plan, self._job, self._watches = plan, job, watch
        self.knobs = _checked(plan, machine, job)
        self.bucket = bucket_of(plan)
        self.withdrawn = ""  # why the plan's gain does not hold, after a path was not taken
        self.verdicts: dict[str, PathVerdict] = {}
        self._marks: list[Any] = []
        self._steps = 0
        self._by_ranks: dict[tuple[int, ...], GpuRoutes] = {}
        # Parameter groups of FSDP2, with the collectives that they had.
        self._sharded: list[tuple[Any, Any, Any]] = []
        self._weft_groups: list[GroupBase] = []
        self._take_groups(groups)
        self._take_modules(model)
        if not self._by_ranks:  # DDP: made with ddp(), after apply
            self._routes_of(range(dist.get_world_size()))
        self._settings = _ProcessSettings(self.knobs, job)
        self._settings.put()
        self._watch = StepWatch(
            plan,
            self._slowest,
            self._switch,
            differs=any(each.execution.knobs for each in self.knobs.collectives),
            default="torch with the library's own choices",
        )

    def group(self, collective: str, ranks: Sequence[int] | None = None) -> ProcessGroup | None:
        """Return the communicator of a planned collective, by default of all ranks."""
        routes = self._routes_of(ranks or range(dist.get_world_size()))
        found = [r for r in routes.planned if r.kind == collective]
        return routes.communicator_of(found[0]) if found else None

    def ddp(self, module: nn.Module, **options: Any) -> DistributedDataParallel:
        """Return a DDP with the buckets and the communicator of the plan."""
        group = self.group("all_reduce")
        if group is not None:
            options.setdefault("process_group", group)
        return super().ddp(module, **options)

    def step(self) -> None:
        """Mark the end of a step on the device; the step before it is compared with the plan."""
        for routes in self._by_ranks.values():
            routes.begin_step()
        self._steps += 1
        self._marks.append(self._job.mark())
        if len(self._marks) == 3:  # two steps back: the device has passed it, nothing waits
            start, end, _ = self._marks
            del self._marks[0]
            if self._watches:
                self._watch.note(self._job.seconds(start, end))
        if self._steps == WARM:
            self._read_log()

    def prove(self, paths: Iterable[CollectivePath]) -> None:
        """Compare the planned paths with those of a log or a trace; withdraw a gain not proven.

        Every rank passes what it has seen; NCCL writes the lines on rank 0 of a communicator. So
        all ranks judge by what any of them saw.
        """
        seen = [path for of_rank in _of_all_ranks(list(paths)) for path in of_rank]
        for ranks, routes in self._by_ranks.items():
            for route in routes.planned:
                if route.path and route.planned is not None:
                    verdict = judge(route.path, route.kind, route.nbytes, len(ranks), seen)
                    self.verdicts[route.planned.pair] = verdict
        fallen = [f"{pair}: {v}" for pair, v in self.verdicts.items() if v.fell_back]
        if fallen and not self.withdrawn:
            self.withdrawn = fallen[0]
            warnings.warn(
                f"{self.withdrawn}; the plan's gain of {100 * self.plan.gain:.1f} % is withdrawn",
                PlanWarning,
                stacklevel=3,
            )

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per planned collective: strategy, path, proof, and how often."""
        routes = [route for each in self._by_ranks.values() for route in each.routes()]
        return [{"step": self.state, **row} for row in merged_rows(map(self._row, routes))]

    def _row(self, route: GpuRoute) -> dict[str, Any]:
        planned = route.planned
        path = "by the library"
        if planned is not None:
            engines = [engine.name for engine in planned.execution.engines]
            path = " + ".join(engines) or path
            verdict = self.verdicts.get(planned.pair)
            if route.unregistered:
                path += f", {route.unregistered} buffers outside symmetric memory: kernels"
            elif verdict is not None:
                path += f", {'proven' if verdict.proven else verdict}"
            elif route.path:
                path += ", not proven"
        return {
            "collective": route.kind,
            "nbytes": route.nbytes,
            "planned": "nothing" if planned is None else planned.strategy.name,
            "path": path,
            "why": "not in the plan" if route.choice is None else route.choice.why,
            "by_plan": route.by_plan,
            "by_default": route.by_default,
        }

    def _where(self) -> str:
        return f"{self.plan.platform}, {self.knobs.stack}"

    def _remarks(self) -> list[str]:
        return [f"gain withdrawn: {self.withdrawn}"] if self.withdrawn else []

    def remove(self) -> None:
        """Restore modules, groups and process settings; communicators stay until the job ends."""
        for routes in self._by_ranks.values():
            routes.default = True
        for group, gathers, scatters in self._sharded:
            group._all_gather_comm = gathers  # noqa: SLF001 - FSDP2 has no getter
            group._reduce_scatter_comm = scatters  # noqa: SLF001 - the same
        for weft_group in self._weft_groups:
            weft_group.device_routes = None
        self._settings.undo()

    def _take_groups(self, groups: Iterable[ProcessGroup]) -> None:
        """Route the calls of weft groups on tensors of GPUs."""
        world: Any = dist.group.WORLD
        for group in dict.fromkeys((world, *groups)):
            if isinstance(group, GroupBase):
                group.device_routes = self._routes_of(dist.get_process_group_ranks(group))
                self._weft_groups.append(group)

    def _take_modules(self, model: nn.Module | None) -> None:
        """Hand the collectives of FSDP2 modules to the routes of their shard group."""
        modules: list[Any] = [] if model is None else list(model.modules())
        for module in modules:
            for group in _param_groups(module) if isinstance(module, FSDPModule) else ():
                ranks = dist.get_process_group_ranks(group.mesh_info.shard_process_group)
                routes = self._routes_of(ranks)
                before = group, group._all_gather_comm, group._reduce_scatter_comm  # noqa: SLF001
                self._sharded.append(before)
                group._all_gather_comm = PlannedAllGather(routes)  # noqa: SLF001 - as set_custom_..
                group._reduce_scatter_comm = PlannedReduceScatter(routes)  # noqa: SLF001

    def _routes_of(self, ranks: Iterable[int]) -> GpuRoutes:
        key = tuple(ranks)
        if key not in self._by_ranks:
            pairs = zip(self.plan.choices, self.knobs.collectives, strict=True)
            self._by_ranks[key] = GpuRoutes.of(self._job, key, pairs)
        return self._by_ranks[key]

    def _slowest(self, seconds: float) -> float:
        found = self._job.scalar(seconds)
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return float(found)

    def _switch(self, default: bool) -> None:  # noqa: FBT001 - a switch has one argument
        for routes in self._by_ranks.values():
            routes.default = default
        if default:
            self._settings.undo()
        else:
            self._settings.put()

    def _read_log(self) -> None:
        """Read NCCL's log, if the environment asked for one, and judge the paths by it."""
        if not any(each.execution.path for each in self.knobs.collectives):
            return
        pattern = os.environ.get("NCCL_DEBUG_FILE", "")
        lines: list[str] = []
        if pattern:
            name = pattern.replace("%h", os.uname().nodename).replace("%p", str(os.getpid()))
            with suppress(OSError):
                lines = Path(name).read_text(errors="replace").splitlines()
        if any(_of_all_ranks(bool(lines))):
            self.prove(read_nccl_log(lines).paths)


def _of_all_ranks(mine: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def _param_groups(module: Any) -> list[Any]:
    """Return the parameter groups of an FSDPModule; before torch 2.13 it had at most one."""
    state = module._get_fsdp_state()  # noqa: SLF001 - FSDP2 has no public name for it
    many = getattr(state, "_fsdp_param_groups", None)
    if many is None:
        many = [state._fsdp_param_group] if state._fsdp_param_group else []  # noqa: SLF001
    return list(many)


def _checked(plan: Plan, machine: Platform, job: GpuJob) -> PlannedKnobs:
    """Raise unless this job, on all its ranks, can execute a plan; return its knobs."""
    stacks = _of_all_ranks((job.refusal(), dict(job.stack().versions)))
    for rank, (why, _) in enumerate(stacks):
        if why:
            raise PlanError(
                f"plan: made for {plan.num_ranks} GPUs of {plan.platform}; on rank {rank} {why}.",
                "Run it there, or plan for CPU ranks: weft plan --on here.",
            )
    mine = SoftwareStack(stacks[0][1], basis="detected")
    for rank, (_, versions) in enumerate(stacks):
        if different := mine.differences(SoftwareStack(versions)):
            raise PlanError(
                f"plan: ranks 0 and {rank} have different software: {different}.",
                "Start all ranks from one environment.",
            )
    if plan.num_ranks != dist.get_world_size():
        raise PlanError(
            f"plan: made for {plan.num_ranks} ranks (got {dist.get_world_size()}).",
            f"Create a plan with weft plan --ranks {dist.get_world_size()}.",
        )
    device = machine.require_device()
    _require_vendor(device.vendor, mine)
    knobs = plan_knobs(plan, device, mine)
    asked = [knob for each in knobs.collectives for knob in each.execution.knobs]
    if lacking := job.missing(dict.fromkeys(asked)):
        raise PlanError(
            f"plan: this torch ({mine.versions['torch']}) lacks {', '.join(lacking)}.",
            f"Plan for it: weft plan --stack torch={mine.versions['torch']}.",
        )
    engines = [engine for each in knobs.collectives for engine in each.execution.engines]
    if by_hand := next((engine for engine in engines if engine.by_hand), None):
        raise PlanError(
            f"plan: uses {by_hand.name}, which weft.torch.apply does not set up.",
            "Set it up in the job as weft plan PLAN --emit fsdp2 shows, or plan without it.",
        )
    if any(engine.aspect == "engines" for engine in engines) and (pair := job.no_peer_access()):
        raise PlanError(
            f"plan: uses copy engines between devices, but {pair} have no peer access.",
            "Check NVLink or PCIe P2P (nvidia-smi topo -p2p r), or plan with --engines 0.",
        )
    if different := plan.budget.stack.differences(mine):
        warnings.warn(
            f"the plan was made for another stack ({different}); its gain may differ",
            PlanWarning,
            stacklevel=5,
        )
    return knobs


def _require_vendor(vendor: str, mine: SoftwareStack) -> None:
    library = _LIBRARIES.get(vendor, "torch")
    if library not in mine.versions:
        raise PlanError(
            f"plan: made for {vendor} devices, which need {library} (got {mine}).",
            "Plan for a machine with the devices of this job: weft plan --on.",
        )


class _ProcessSettings:
    """Knobs of a whole process: the carve-out and Inductor's configuration, put and undone."""

    def __init__(self, knobs: PlannedKnobs, job: GpuJob) -> None:
        self._job = job
        carved = [k for k in knobs.knobs("torch") if "carveout" in k.name]
        # One carve-out holds for all products of a process: the widest that a collective needs.
        self.units = max((int(k.value) for k in carved), default=None)
        self._inductor = list(knobs.knobs("inductor"))
        self._before: list[Any] = []
        _check_environment(knobs.knobs("env"))

    def put(self) -> None:
        """Set them; what was compiled before keeps its settings."""
        if self.units is not None:
            self._job.carve_out(self.units)
        self._before = []
        for knob in self._inductor:
            holder, name = _holder(knob.name)
            self._before.append((holder, name, getattr(holder, name)))
            setattr(holder, name, knob.value)

    def undo(self) -> None:
        """Restore the settings from before the plan."""
        if self.units is not None:
            self._job.carve_out(None)
        for holder, name, value in self._before:
            setattr(holder, name, value)
        self._before = []


def _holder(dotted: str) -> tuple[Any, str]:
    found: Any = import_module("torch._inductor.config")
    *path, name = dotted.split(".")
    for part in path:
        found = getattr(found, part)
    return found, name


def _is_set(knob: Knob) -> bool:
    """Return whether a variable has the value of a knob; NCCL_ALGO has those of many functions."""
    value = os.environ.get(knob.env, "")
    return str(knob.value) in (value.split(";") if knob.env == "NCCL_ALGO" else [value])


def _check_environment(knobs: Iterable[Knob]) -> None:
    """Warn about variables that the library read before anybody could set them."""
    lacking = [k for k in knobs if not _is_set(k)]
    if lacking:
        told = " ".join(f"{knob.env}={knob.value}" for knob in lacking)
        warnings.warn(
            f"the plan needs variables that are read when the job starts: {told} "
            "(weft plan plan.json --emit env)",
            PlanWarning,
            stacklevel=6,
        )
