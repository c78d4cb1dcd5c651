"""Time on a platform model: ``simulate(schedule, platform)`` gives a Timeline."""

from weft.simulator.interpreter import simulate

__all__ = ["simulate"]
