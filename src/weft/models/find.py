"""A workload by what a user calls it: a name, a file, or a function of torch code."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from functools import partial, update_wrapper
from pathlib import Path
from typing import Any

from weft.errors import FormatError, UnknownNameError, UsageError, nearest
from weft.models.importers import format_of
from weft.models.job import Job
from weft.models.named import configuration_of, generate, job_of
from weft.step.matching import split_classes
from weft.step.step_graph import StepGraph


def find_workload(
    spec: str,
    num_ranks: int,
    settings: Mapping[str, str] | None = None,
    *,
    every_rank: bool = False,
) -> StepGraph:
    """Build or read the workload that ``spec`` names, for ``num_ranks`` ranks."""
    given = dict(settings or {})
    if ":" in spec and not Path(spec).exists():
        return _captured(spec, num_ranks, given, every_rank=every_rank)
    if spec.endswith(".json") and not is_configuration(spec):
        return _read(Path(spec), num_ranks, given)
    if spec.endswith((".json.gz", ".csv", ".et")):  # a trace that is there was taken before
        raise FormatError(f"there is no file {spec}", "Name a workload, or a file that exists.")
    return generate(spec, num_ranks, given)


def find_job(spec: str, num_ranks: int, settings: Mapping[str, str] | None = None) -> Job | None:
    """Return the job that is generated for ``spec``; None for files of workloads and torch code."""
    if ":" in spec and not Path(spec).exists():
        return None
    if spec.endswith((".json.gz", ".csv", ".et")):
        return None
    if spec.endswith(".json") and not is_configuration(spec):
        return None
    return job_of(spec, num_ranks, settings)


_LARGEST = 1 << 20  # bytes of a configuration; files that are longer were recorded


def is_configuration(spec: str) -> bool:
    """Return whether a .json file, or the folder of a model, is another program's configuration."""
    path = Path(configuration_of(spec))
    if path.suffix != ".json" or not path.is_file() or path.stat().st_size > _LARGEST:
        return False
    try:
        return format_of(path) is not None
    except FormatError:
        return False


def _read(path: Path, num_ranks: int, settings: Mapping[str, str]) -> StepGraph:
    if settings:
        raise UsageError(f"{path} is a finished workload: --set {next(iter(settings))} is too late")
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FormatError(
            f"cannot read {path}: {error.strerror}", "Name a workload, or a file that exists."
        ) from error
    workload = StepGraph.from_json(text)
    if workload.num_ranks != num_ranks:
        raise UsageError(
            f"{path} is for {workload.num_ranks} ranks, not {num_ranks}",
            f"Use --ranks {workload.num_ranks}, or make it again.",
        )
    return split_classes(workload)


def _captured(
    spec: str, num_ranks: int, settings: Mapping[str, str], *, every_rank: bool
) -> StepGraph:
    """Capture ``package.module:function``; settings become its keyword arguments."""
    step = _function(spec)
    for key in settings:
        known = _parameters(step)
        if key not in known:
            raise UsageError(f"{spec} takes no {key!r}", nearest(key, known))
    bound = partial(step, **{key: _literal(value) for key, value in settings.items()})
    update_wrapper(bound, step)
    try:
        from weft.torch.capture.capture_step import capture
    except ModuleNotFoundError as error:
        raise UsageError(
            f"to capture {spec} needs torch, which is not here", "Use pip install 'weft[torch]'."
        ) from error
    return capture(bound, num_ranks, name=spec, every_rank=every_rank)


def _parameters(step: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(step).parameters)
    except ValueError:  # some built in ones have no signature
        return []


def _function(spec: str) -> Callable[..., Any]:
    module, _, name = spec.partition(":")
    if not all(module.split(".")):
        raise UsageError(
            f"{spec!r} names no function",
            "Use package.module:function, from the folder that holds the package.",
        )
    if "" not in sys.path:
        sys.path.insert(0, "")  # what python -m would find: modules of this folder
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise UsageError(f"{module} needs {error.name}, which is not here") from error
        raise UnknownNameError(
            f"there is no module {module!r}",
            "Use package.module:function, from the folder that holds the package.",
        ) from error
    except Exception as error:
        raise UsageError(
            f"{module} cannot be imported: {type(error).__name__}: {error}",
            f"Try: python -c 'import {module}'",
        ) from error
    if not callable(found):
        functions = [k for k, v in vars(sys.modules[module]).items() if inspect.isfunction(v)]
        raise UnknownNameError(f"{module} has no function {name!r}", nearest(name, functions))
    return found  # type: ignore[no-any-return]


def _literal(value: str) -> Any:
    """Read a number or a truth value; anything else stays a word.

    >>> _literal("4"), _literal("0.5"), _literal("true"), _literal("bf16")
    (4, 0.5, True, 'bf16')
    """
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
