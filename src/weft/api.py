"""What ``weft.predict``, ``weft.plan`` and others are: names are taken as well as values.

    weft.predict("llama-8b", "h100-8", settings={"fsdp": True})
    weft.predict(weft.find_workload("llama-8b", 8), weft.platform("h100-8"))

A workload is given as the command line takes it: a name, a ``.json`` file that ``weft predict -o``
wrote, or ``package.module:function``. So is a platform: a name, a cluster, a file or a network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from weft.errors import UsageError
from weft.hardware import Platform
from weft.hardware import platform as find_platform
from weft.models import find
from weft.planner import planning
from weft.planner import predict as predicting
from weft.planner.job_prediction import extended_plan, predict_job
from weft.planner.plan import Limits, Plan
from weft.planner.predict import Prediction
from weft.planner.prices import Prices
from weft.planner.spreading import shortened_graph
from weft.step import HostModel
from weft.step.step_graph import StepGraph
from weft.trace import Trace, read
from weft.trace.formats.reading import read_untimed
from weft.trace.recorded.untimed_graph import step_of_graph
from weft.whatif import Answer, answer

_TRACES = (".json.gz", ".csv", ".et")


def predict(
    workload: StepGraph | str | Path,
    platform: Platform | str | Path,
    *,
    num_ranks: int | None = None,
    settings: Mapping[str, object] | None = None,
    host: HostModel | None = None,
    anyway: bool = False,
    prices: Prices | None = None,
) -> Prediction:
    """Predict one step of a workload on a platform.

    ``num_ranks`` of the platform are used, all by default. ``settings`` are those of a workload
    that is given by name, as ``{"fsdp": True, "batch": 64}``. A step that does not fit into memory
    is refused, unless ``anyway``.
    """
    machine = _machine(workload, platform, num_ranks, settings)
    if not isinstance(workload, StepGraph):
        job = find.find_job(str(workload), machine.num_ranks, _settings(settings))
        if job is not None:
            return predict_job(job, machine, host=host, anyway=anyway, prices=prices)
        workload = find_workload(workload, machine.num_ranks, settings)
    return predicting.predict(workload, machine, host=host, anyway=anyway, prices=prices)


def plan(
    workload: StepGraph | str | Path,
    platform: Platform | str | Path,
    *,
    num_ranks: int | None = None,
    settings: Mapping[str, object] | None = None,
    mode: str = "search",
    limits: Limits = Limits(),  # noqa: B008 - frozen
    host: HostModel | None = None,
) -> Plan:
    """Choose a strategy for each collective of a step on a platform.

    What is asked about is given as to ``predict``. ``heuristic`` decides pair by pair from static
    sizes, ``search`` simulates pairs and decides by the whole step.
    """
    machine = _machine(workload, platform, num_ranks, settings)
    job = None
    if not isinstance(workload, StepGraph):
        job = find.find_job(str(workload), machine.num_ranks, _settings(settings))
    if job is None:
        if not isinstance(workload, StepGraph):
            workload = find_workload(workload, machine.num_ranks, settings)
        return planning.plan(workload, machine, mode=mode, limits=limits, host=host)
    made = planning.plan(
        shortened_graph(job), machine, mode=mode, limits=limits, host=host, software=job.software
    )
    return extended_plan(made, job, machine, host=host)


def what_if(
    trace: Trace | str | Path, names: Sequence[str] = (), *, on: Platform | str | Path | None = None
) -> Answer:
    """Replay the step of one rank's trace, then with each change; ``on`` moves it elsewhere."""
    recorded = trace if isinstance(trace, Trace) else read(trace)
    machine = on if on is None or isinstance(on, Platform) else find_platform(on)
    return answer.what_if(recorded, names, on=machine)


def find_workload(
    workload: str | Path,
    num_ranks: int,
    settings: Mapping[str, object] | None = None,
    *,
    every_rank: bool = False,
) -> StepGraph:
    """Make or read the workload of that name, for ``num_ranks`` ranks."""
    spec = str(workload)
    if spec.endswith(_TRACES) and Path(spec).is_file():
        graph = read_untimed(spec)
        if graph is not None:
            return step_of_graph(graph, num_ranks)
        raise UsageError(
            f"{spec} is a recorded step, not a workload",
            "Use weft.whatif.predict_trace(weft.trace.read(path), platform), or weft.analyze.",
        )
    return find.find_workload(spec, num_ranks, _settings(settings), every_rank=every_rank)


def _machine(
    workload: StepGraph | str | Path,
    platform: Platform | str | Path,
    num_ranks: int | None,
    settings: Mapping[str, object] | None,
) -> Platform:
    """Return the platform that is asked about, with as many ranks as the workload has."""
    if not isinstance(workload, StepGraph | str | Path):
        raise UsageError(
            f"workload: expected a StepGraph or its name (got {type(workload).__name__})"
        )
    if isinstance(workload, StepGraph):
        if settings:
            raise UsageError(
                f"settings: {next(iter(settings))!r} is too late for a StepGraph that is made",
                "Give the workload by its name, or make it with these settings.",
            )
        if num_ranks not in (None, workload.num_ranks):
            raise UsageError(
                f"num_ranks: {workload.name} is for {workload.num_ranks} ranks (got {num_ranks})"
            )
    if isinstance(platform, Platform):
        return platform if num_ranks is None else platform.resized(num_ranks)
    ranks = workload.num_ranks if isinstance(workload, StepGraph) else num_ranks
    return find_platform(platform, num_ranks=ranks)


def _settings(given: Mapping[str, object] | None) -> dict[str, str]:
    return {key: _word(value) for key, value in (given or {}).items()}


def _word(value: object) -> str:
    """Write a setting as the command line takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple | list):
        return "-".join(map(str, value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
