"""capture: one step of torch code as a Workload, on fake tensors, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from weft.errors import CaptureError, UsageError, WeftError
from weft.workload.step import Op, Step, Workload
from weft.workload.torch_collectives import Groups
from weft.workload.torch_memory import SETUP
from weft.workload.torch_recorder import Recorder
from weft.workload.torch_stage import stage

Seen = Callable[[int, int, Any, Any, Any, Any], None]
Places = dict[int, tuple[int, ...]]  # a rank that is captured, and all that do the same


def capture(
    step: Callable[[], Any],
    world_size: int = 1,
    *,
    name: str = "",
    every_rank: bool = False,
    as_gpu: bool = True,
    seen: Seen | None = None,
) -> Workload:
    """Write down what one step of ``step`` does on each of ``world_size`` ranks.

    If ``step`` returns a function, that is the step and what came before is its preparation.
    Otherwise ``step`` itself is written down, preparation included. It is the first step
    of its kind: DDP has its buckets in the order in which parameters were made.

    Ranks are taken to do the same, unless ``every_rank`` is to be captured by itself: tables that
    are spread unevenly, for instance. A step that sends messages is captured once for each
    position of the group it sends them in: the stages of a pipeline.

    ``as_gpu``: optimizers and norms run the kernels of a GPU, even if the step names no device.
    ``seen`` is told of every op: its rank, its number (-1 if it does nothing of its own and is
    not written down), function, arguments and results.
    """
    if world_size < 1:
        raise UsageError(f"a step needs at least 1 rank, not {world_size}")
    name = name or getattr(step, "__name__", "step")
    captured = partial(_captured, step, world_size, name, as_gpu=as_gpu, seen=seen)
    first = captured(0)
    each_alone: Places = {rank: (rank,) for rank in range(world_size)}
    places = each_alone if every_rank else _stages(first)
    if len(places) < 2:
        return first
    found = {rank: captured(rank) if rank else first for rank in places}
    alike: dict[tuple[Op, ...], list[int]] = {}
    for rank, workload in found.items():
        alike.setdefault(workload.steps[0].ops, []).extend(places[rank])
    steps = tuple(Step(tuple(sorted(ranks)), ops) for ops, ranks in alike.items())
    return _joined(first, list(found.values()), steps)


def _joined(first: Workload, workloads: list[Workload], steps: tuple[Step, ...]) -> Workload:
    """Put ranks that do different things together: the fullest memory, every group."""
    groups = {key: group for each in workloads for key, group in each.groups.items()}
    fullest = max(workloads, key=lambda each: each.memory.total if each.memory else 0)
    unsupported = tuple(dict.fromkeys(u for each in workloads for u in each.unsupported))
    return replace(
        first, steps=steps, groups=groups, memory=fullest.memory, unsupported=unsupported
    )


def _stages(workload: Workload) -> Places:
    """Find who sends messages to whom: for each stage one of its ranks, and all of them."""
    for op in workload.ops():
        if op.collective is not None and op.collective.kind in ("send", "recv"):
            group = workload.group(op.collective.group)
            everyone = range(workload.num_ranks)
            return {
                member: tuple(r for r in everyone if int(group.position(r)) == place)
                for place, member in enumerate(workload.members(op.collective.group, 0))
            }
    return {}


def _captured(
    step: Callable[[], Any],
    world_size: int,
    name: str,
    rank: int,
    *,
    as_gpu: bool,
    seen: Seen | None,
) -> Workload:
    groups = Groups(rank, world_size)
    recorder = Recorder(groups, partial(seen, rank) if seen is not None else None)
    memory, aside = recorder.memory.resized, recorder.aside
    with stage(rank, world_size, memory, aside, as_gpu=as_gpu), _Hooks(recorder):
        _run(recorder, step, name)
    ops = tuple(recorder.ops)
    if not ops:
        raise CaptureError(
            f"{name} did nothing on tensors, so there is no step to predict",
            "Return the function that runs one step, or run it.",
        )
    everyone = Step(tuple(range(world_size)), ops)
    return Workload(
        name,
        world_size,
        (everyone,),
        dict(groups.found),
        recorder.memory.memory(),
        recorder.unsupported,
        f"captured from {name} by torch {torch.__version__}",
    )


def _run(recorder: Recorder, step: Callable[[], Any], name: str) -> None:
    """Prepare, warm up and record; what torch refuses becomes one line."""
    try:
        with recorder:
            recorder.memory.label = SETUP
            recorder.recording = True
            inner = step()
            if not callable(inner):
                return
            recorder.memory.label = ""
            recorder.memory.start_again()
            recorder.start_over()
            inner()
    except WeftError:
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CaptureError(
            f"{name} uses {error.args[0]}, whose result depends on data and has no largest shape",
            "Give it a fixed shape in the step that is captured.",
        ) from error
    except Exception as error:
        raise CaptureError(
            f"{name} failed while it was captured: {type(error).__name__}: {error}",
            "It runs on fake tensors: it may not read files of data or values of tensors.",
        ) from error


class _Hooks:
    """Tells the recorder when an optimizer is at work."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []

    def __enter__(self) -> None:
        recorder = self._recorder

        def begin(*_: Any) -> None:
            recorder.phase = "optimizer"

        def end(*_: Any) -> None:
            recorder.phase = "forward"

        self._handles = [
            register_optimizer_step_pre_hook(begin),
            register_optimizer_step_post_hook(end),
        ]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()
