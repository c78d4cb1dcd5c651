"""One step on one engine: its ops as flows of the native simulator."""

from weft.step.engine import StepEngine
from weft.step.execution import Execution
from weft.step.run import StepRun

__all__ = ["Execution", "StepEngine", "StepRun"]
