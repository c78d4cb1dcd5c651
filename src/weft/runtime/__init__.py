"""Execution of schedules by the processes of one machine, over shared memory."""

from weft.runtime.bound_memory import RawMemory
from weft.runtime.engine_threads import Engines
from weft.runtime.env_rendezvous import world
from weft.runtime.persistent_collective import bind_persistent, prepare_collective
from weft.runtime.prepared_schedule import PreparedSchedule, prepare, run
from weft.runtime.spawn import spawn
from weft.runtime.world import World

__all__ = [
    "Engines",
    "PreparedSchedule",
    "RawMemory",
    "World",
    "bind_persistent",
    "prepare",
    "prepare_collective",
    "run",
    "spawn",
    "world",
]
