"""weft predicts, plans and runs the communication of distributed PyTorch jobs.

    schedule = weft.collective("all_gather", "ring", num_ranks=8, nbytes=1 << 20)
    predicted = weft.simulate(schedule, weft.platform("mi300x-8"))
    measured = weft.run(schedule, world)

Names are found when they are first used, so that importing weft costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.collectives import collective
    from weft.hardware import Platform, platform
    from weft.planner.plan import Plan
    from weft.planner.planning import plan
    from weft.planner.predict import predict
    from weft.runtime import Engines, World, prepare, run, spawn, world
    from weft.schedule import Schedule
    from weft.simulator import simulate
    from weft.timeline import Timeline
    from weft.trace import Analysis
    from weft.whatif import analyze
    from weft.workload import Workload
    from weft.workload.torch_capture import capture

__version__: str  # that of the installed package
__all__ = [
    "Analysis",
    "Engines",
    "Plan",
    "Platform",
    "Schedule",
    "Timeline",
    "Workload",
    "World",
    "analyze",
    "capture",
    "collective",
    "plan",
    "platform",
    "predict",
    "prepare",
    "run",
    "simulate",
    "spawn",
    "world",
]

_HOMES = {
    "Analysis": "weft.trace",
    "Engines": "weft.runtime",
    "Plan": "weft.planner.plan",
    "Platform": "weft.hardware",
    "Schedule": "weft.schedule",
    "Timeline": "weft.timeline",
    "Workload": "weft.workload",
    "World": "weft.runtime",
    "analyze": "weft.whatif",
    "capture": "weft.workload.torch_capture",
    "collective": "weft.collectives",
    "plan": "weft.planner.planning",
    "platform": "weft.hardware",
    "predict": "weft.planner.predict",
    "prepare": "weft.runtime",
    "run": "weft.runtime",
    "simulate": "weft.simulator",
    "spawn": "weft.runtime",
    "world": "weft.runtime",
}
_PACKAGES = frozenset(
    {
        *("c3", "collectives", "compress", "cost", "errors", "fused", "hardware", "planner"),
        *("report", "runtime", "schedule", "sdma", "serving", "simulator", "sweep", "timeline"),
        *("torch", "trace", "units", "validate", "whatif", "workload"),
    }
)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module("weft.report.results").weft_version()
    if name in _PACKAGES:
        return import_module(f"weft.{name}")
    if name not in _HOMES:
        message = f"module 'weft' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(import_module(_HOMES[name]), name)
