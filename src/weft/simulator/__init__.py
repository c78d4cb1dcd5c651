"""Time on a platform model: ``simulate(schedule, platform)`` gives a Timeline."""

from weft.simulator.energy import Energy, energy
from weft.simulator.interpreter import simulate

__all__ = ["Energy", "energy", "simulate"]
