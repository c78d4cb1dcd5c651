"""``capture``: record one step of torch code as a StepGraph, on fake tensors, without a GPU."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from weft.errors import CaptureError, UsageError, WeftError
from weft.schedule.values import Group
from weft.step.matching import split_classes
from weft.step.step_graph import Op, RankStep, StepGraph
from weft.torch.capture.byte_dependencies import storage_of
from weft.torch.capture.capture_environment import fake_environment
from weft.torch.capture.captured_collectives import GroupNames
from weft.torch.capture.captured_works import NotSentError, ObjectExchange
from weft.torch.capture.op_costs import tensors_in
from weft.torch.capture.peak_memory import SETUP
from weft.torch.capture.recorder import Recorder

Seen = Callable[[int, int, Any, Any, Any, Any], None]
Places = dict[int, list[int]]  # a rank that is captured, and all that do the same


def capture(
    step: Callable[[], Any],
    world_size: int = 1,
    *,
    name: str = "",
    every_rank: bool = False,
    as_gpu: bool = True,
    seen: Seen | None = None,
) -> StepGraph:
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
        raise UsageError(f"world_size: a step needs at least 1 rank (got {world_size})")
    name = name or getattr(step, "__name__", "step")
    if needed := _needed(step):
        raise CaptureError(
            f"{name} needs arguments ({', '.join(needed)})",
            f"Give them a default, or pass them by functools.partial or --set {needed[0]}=..",
        )
    objects = ObjectExchange()
    captured = partial(_captured, step, world_size, name, objects, as_gpu=as_gpu, seen=seen)
    found: dict[int, StepGraph] = {}
    try:
        found[0] = captured(0)
        messages = _message_groups(found[0])
    except NotSentError as missing:  # rank 0 needs what a later stage of its pipeline sends
        groups = GroupNames(0, world_size)
        messages = [groups.found.get(groups.name_of(missing.ranks), Group(world_size))]
    places = (
        _places(world_size, messages) if not every_rank else {r: [r] for r in range(world_size)}
    )
    if found and len(places) < 2:
        return found[0]
    _capture_all(captured, list(places), found, objects)
    alike: dict[tuple[Op, ...], list[int]] = {}
    for rank, ranks in places.items():
        alike.setdefault(found[rank].steps[0].ops, []).extend(ranks)
    steps = tuple(RankStep(tuple(sorted(ranks)), ops) for ops, ranks in alike.items())
    return split_classes(_joined(found[0], [found[rank] for rank in places], steps))


def _capture_all(
    captured: Callable[[int], StepGraph],
    ranks: list[int],
    found: dict[int, StepGraph],
    objects: ObjectExchange,
) -> None:
    """Capture ranks in turns until each has the objects that others send it."""
    while missing := [rank for rank in ranks if rank not in found]:
        before = len(found), objects.num_sent
        for rank in missing:
            try:
                found[rank] = captured(rank)
            except NotSentError as error:
                waiting = error
        if (len(found), objects.num_sent) == before:
            raise CaptureError(
                waiting.message, "Check that every object that is received is also sent."
            ) from waiting


def _message_groups(workload: StepGraph) -> list[Group]:
    """Return the groups in which ranks send messages: those of pipelines."""
    names = dict.fromkeys(
        op.collective.group
        for op in workload.ops()
        if op.collective is not None and op.collective.kind in ("send", "recv")
    )
    return [workload.group(name) for name in names]


def _places(world_size: int, groups: list[Group]) -> Places:
    """Return, for ranks at equal positions of ``groups``, the first and all of them."""
    found: dict[tuple[int, ...], list[int]] = {}
    for rank in range(world_size):
        listed = all(not group.ranks or rank in group.ranks for group in groups)
        key = tuple(int(group.position(rank)) for group in groups) if listed else (-1, rank)
        found.setdefault(key, []).append(rank)
    return {ranks[0]: ranks for ranks in found.values()}


def _joined(first: StepGraph, workloads: list[StepGraph], steps: tuple[RankStep, ...]) -> StepGraph:
    """Merge the captures of different ranks: the largest memory, every group."""
    groups = {key: group for each in workloads for key, group in each.groups.items()}
    fullest = max(workloads, key=lambda each: each.memory.total if each.memory else 0)
    unsupported = tuple(dict.fromkeys(u for each in workloads for u in each.unsupported))
    return replace(
        first, steps=steps, groups=groups, memory=fullest.memory, unsupported=unsupported
    )


def _captured(
    step: Callable[[], Any],
    world_size: int,
    name: str,
    objects: ObjectExchange,
    rank: int,
    *,
    as_gpu: bool,
    seen: Seen | None,
) -> StepGraph:
    groups = GroupNames(rank, world_size)
    told = partial(seen, rank) if seen is not None else None
    recorder = Recorder(groups, told, as_gpu=as_gpu)
    with fake_environment(recorder, rank, world_size, objects, as_gpu=as_gpu), _Hooks(recorder):
        _run(recorder, step, name)
    ops = tuple(recorder.ops)
    if not ops:
        raise CaptureError(
            f"{name} did nothing on tensors, so there is no step to predict",
            "Return the function that runs one step, or run it.",
        )
    everyone = RankStep(tuple(range(world_size)), ops)
    return StepGraph(
        name,
        world_size,
        (everyone,),
        dict(groups.found),
        recorder.memory.memory(),
        recorder.unsupported,
        f"captured from {name} by torch {torch.__version__}",
    )


def _run(recorder: Recorder, step: Callable[[], Any], name: str) -> None:
    """Prepare and record a step; what torch refuses becomes one line that names the user's."""
    try:
        with recorder:
            recorder.memory.label = SETUP
            recorder.recording = True
            inner = step()
            if not _is_step(inner, name):
                return
            recorder.memory.label = ""
            recorder.memory.start_again()
            recorder.start_over()
            inner()
            recorder.memory.step_done()
    except NotSentError:
        raise
    except WeftError as error:
        if where := _user_line(error, of_libraries=False):
            error.message = f"{where}: {error.message}"
        raise
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        raise CaptureError(
            f"{_user_line(error)}: {error.args[0]}: its result depends on data and has no "
            "largest shape",
            "Give it a fixed shape in the step that is captured.",
        ) from error
    except SystemExit as error:
        raise CaptureError(
            f"{name} ended the program at {_user_line(error)}: sys.exit({error.code!r})",
            "Return from the function instead. Arguments of the command line are not passed on.",
        ) from error
    except Exception as error:
        raise CaptureError(
            f"{name} failed at {_user_line(error)}: {_described(error)}", _hint(error)
        ) from error


def _is_step(inner: Any, name: str) -> bool:
    """Return whether a preparation returned the step; raise if it returned something like it."""
    hint = "Return a function without arguments that runs one step."
    if isinstance(inner, torch.nn.Module):
        raise CaptureError(f"{name} returned a module, not a step", hint)
    if isinstance(inner, (tuple, list)) and any(callable(each) for each in inner):
        raise CaptureError(f"{name} returned {len(inner)} objects, expected one step", hint)
    if callable(inner) and (needed := _needed(inner)):
        given = ", ".join(needed)
        raise CaptureError(f"{name} returned a step that needs arguments ({given})", hint)
    return callable(inner)


def _needed(function: Any) -> list[str]:
    """Return the arguments that a function cannot be called without."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # functions of C
        return []
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


def _hint(error: Exception) -> str:
    """Return the way out of an error of the user's code."""
    if isinstance(error, ImportError):
        return "Install the module where weft runs, or leave it out while the step is captured."
    if isinstance(error, OSError):
        return "Files that the step opens have to be there; give it random tensors as data."
    if "HigherOrderOperator" in str(error):
        return "Higher-order operators are not recorded: use the same in ops, as attention by sdpa."
    if "convert all Tensors to FakeTensors" in str(error):
        return "Make models and tensors inside the function that is captured, not before."
    fake = ("fake", "data_ptr", "Fake", "data-dependent", "storage", "tensor subclass")
    if any(word in str(error) for word in fake):
        return "It runs on fake tensors: it may not read values or memory of tensors."
    return "The code itself raised it: it runs as it would on a GPU, on tensors without values."


def _described(error: BaseException) -> str:
    """Return what went wrong, and what was the first cause of it: pipelines wrap errors."""
    first = error
    while cause := first.__cause__ or (None if first.__suppress_context__ else first.__context__):
        first = cause
    said = f"{type(error).__name__}: {error}"
    return said if str(first) in said else f"{said} (from {type(first).__name__}: {first})"


_LIBRARIES = (*sysconfig.get_paths().values(), str(Path(torch.__file__).parent))
_OURS = str(Path(__file__).parent)


def _user_line(error: BaseException, *, of_libraries: bool = True) -> str:
    """Return where the user's code was when an error was raised: the last line of no library."""
    lines = traceback.extract_tb(error.__traceback__)
    users = [
        line for line in lines if not line.filename.startswith((*_LIBRARIES, _OURS, "<frozen"))
    ]
    if not users and not of_libraries:
        return ""
    line = (users or lines)[-1]
    return f"{line.filename}:{line.lineno} ({line.line})"


class _Hooks:
    """Notify the recorder when an optimizer is at work.

    The first step of an optimizer makes its state. It is run once more than asked for, before the
    step that is recorded, so that what is recorded is a later step.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._handles: list[Any] = []
        self._known: WeakSet[Any] = WeakSet()
        self._depth = 0  # optimizers such as ZeroRedundancyOptimizer run another one

    def __enter__(self) -> None:
        self._handles = [
            register_optimizer_step_pre_hook(self._begin),
            register_optimizer_step_post_hook(self._end),
        ]

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    def _begin(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._depth += 1
        self._recorder.phase = "optimizer"
        first = optimizer not in self._known
        self._known.add(optimizer)
        # A closure would run the forward pass in what counts as the optimizer.
        if first and self._depth == 1 and len(args) == 1 and not kwargs.get("closure"):
            with self._recorder.aside(memory=True):
                optimizer.step(**kwargs)
        states = [state for state in optimizer.state.values() if isinstance(state, dict)]
        values = tensors_in(value for state in states for value in state.values())
        self._recorder.counters |= {storage_of(value) for value in values if not value.dim()}

    def _end(self, *_: Any) -> None:
        self._depth -= 1
        if not self._depth:
            self._recorder.phase = "forward"
            self._recorder.memory.optimizer_done()
