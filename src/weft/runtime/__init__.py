"""Schedules executed for real: processes of one machine over shared memory."""

from weft.runtime.engines import Engines
from weft.runtime.interpreter import Prepared, prepare, run
from weft.runtime.meeting import world
from weft.runtime.memory import Memory
from weft.runtime.registered import prepare_collective, standing
from weft.runtime.spawn import spawn
from weft.runtime.world import World

__all__ = [
    "Engines",
    "Memory",
    "Prepared",
    "World",
    "prepare",
    "prepare_collective",
    "run",
    "spawn",
    "standing",
    "world",
]
