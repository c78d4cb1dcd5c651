"""capture: one step of torch code as a Workload, on fake tensors, without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from weft.errors import CaptureError, UsageError, WeftError
from weft.workload.step import WORLD, Step, Workload
from weft.workload.torch_collectives import Groups
from weft.workload.torch_memory import SETUP
from weft.workload.torch_recorder import Recorder
from weft.workload.torch_stage import stage


def capture(step: Callable[[], Any], world_size: int = 1, *, name: str = "") -> Workload:
    """Write down what one step of ``step`` does on each of ``world_size`` ranks.

    If ``step`` returns a function, that is the step and what came before is its preparation.
    Otherwise ``step`` itself is written down, preparation included. It is the first step
    of its kind: DDP has its buckets in the order in which parameters were made.

    Ranks are taken to do the same. A step that sends messages is captured once for each position
    of the group it sends them in: the stages of a pipeline.
    """
    if world_size < 1:
        raise UsageError(f"a step needs at least 1 rank, not {world_size}")
    name = name or getattr(step, "__name__", "step")
    first = _captured(step, 0, world_size, name)
    stages = _stages(first)
    if stages is None:
        return first
    group, members = stages
    workloads = [first] + [_captured(step, m, world_size, name) for m in members[1:]]
    position = first.groups[group] if group != WORLD else first.group(WORLD)
    steps = tuple(
        Step(
            tuple(r for r in range(world_size) if int(position.position(r)) == place),
            each.steps[0].ops,
        )
        for place, each in enumerate(workloads)
    )
    return _joined(first, workloads, steps)


def _joined(first: Workload, workloads: list[Workload], steps: tuple[Step, ...]) -> Workload:
    """Put the stages of a pipeline together: the fullest memory, every group."""
    groups = {key: group for each in workloads for key, group in each.groups.items()}
    fullest = max(workloads, key=lambda each: each.memory.total if each.memory else 0)
    unsupported = tuple(dict.fromkeys(u for each in workloads for u in each.unsupported))
    return replace(
        first, steps=steps, groups=groups, memory=fullest.memory, unsupported=unsupported
    )


def _stages(workload: Workload) -> tuple[str, tuple[int, ...]] | None:
    """Find the group in which a rank sends messages to ranks that do something else."""
    for op in workload.ops():
        if op.collective is not None and op.collective.kind in ("send", "recv"):
            return op.collective.group, workload.members(op.collective.group, 0)
    return None


def _captured(step: Callable[[], Any], rank: int, world_size: int, name: str) -> Workload:
    groups = Groups(rank, world_size)
    recorder = Recorder(groups)
    with stage(rank, world_size, recorder.memory.resized, recorder.aside), _Hooks(recorder):
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
