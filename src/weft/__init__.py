"""weft predicts, plans and runs the communication of distributed PyTorch jobs.

    prediction = weft.predict("llama-8b", "h100-8", settings={"fsdp": True})
    schedule = weft.collective("all_gather", "ring", num_ranks=8, nbytes=1 << 20)
    predicted = weft.simulate(schedule, "mi300x-8")
    measured = weft.run(schedule, world)

Names are found when they are first used, so that importing weft costs nothing. So are
sub-packages: ``weft.torch`` imports torch and registers the backend ``weft``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from weft.api import find_workload, plan, predict, what_if
    from weft.collectives import collective
    from weft.cost import price
    from weft.hardware import Platform, platform, platform_names
    from weft.planner.plan import Plan
    from weft.planner.predict import Prediction
    from weft.runtime import Engines, World, prepare, run, spawn, world
    from weft.schedule import Schedule
    from weft.simulator import simulate
    from weft.step import StepGraph
    from weft.timeline import Timeline
    from weft.torch.capture.capture_step import capture
    from weft.trace import Analysis
    from weft.whatif import analyze

__version__: str  # that of the installed package
__all__ = [
    "Analysis",
    "Engines",
    "Plan",
    "Platform",
    "Prediction",
    "Schedule",
    "StepGraph",
    "Timeline",
    "World",
    "analyze",
    "capture",
    "collective",
    "find_workload",
    "plan",
    "platform",
    "platform_names",
    "predict",
    "prepare",
    "price",
    "run",
    "simulate",
    "spawn",
    "what_if",
    "world",
]

_HOMES = {
    "Analysis": "weft.trace",
    "Engines": "weft.runtime",
    "Plan": "weft.planner.plan",
    "Platform": "weft.hardware",
    "Prediction": "weft.planner.predict",
    "Schedule": "weft.schedule",
    "Timeline": "weft.timeline",
    "StepGraph": "weft.step",
    "World": "weft.runtime",
    "analyze": "weft.whatif",
    "capture": "weft.torch.capture.capture_step",
    "collective": "weft.collectives",
    "find_workload": "weft.api",
    "plan": "weft.api",
    "platform": "weft.hardware",
    "platform_names": "weft.hardware",
    "predict": "weft.api",
    "prepare": "weft.runtime",
    "price": "weft.cost",
    "run": "weft.runtime",
    "simulate": "weft.simulator",
    "spawn": "weft.runtime",
    "what_if": "weft.api",
    "world": "weft.runtime",
}
_PACKAGES = frozenset(
    {
        *("c3", "calibration", "collectives", "compress", "cost", "errors", "fused", "gpu"),
        *("hardware", "models", "planner", "report", "runtime", "schedule", "serving"),
        *("result_tables", "simulator", "step", "sweep", "timeline", "torch", "trace", "units"),
        "whatif",
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


def __dir__() -> list[str]:
    own = (name for name in globals() if name.startswith("__"))
    return sorted({*own, *__all__, *_PACKAGES, "__version__"})
