"""Time on a platform model: ``simulate(schedule, platform)`` gives a Timeline."""

from weft.simulator.energy import Energy, energy
from weft.simulator.flows import collective_units, unit_rate
from weft.simulator.grids import byte_weight
from weft.simulator.interpreter import simulate
from weft.simulator.prepared import Prepared

__all__ = [
    "Energy",
    "Prepared",
    "byte_weight",
    "collective_units",
    "energy",
    "simulate",
    "unit_rate",
]
