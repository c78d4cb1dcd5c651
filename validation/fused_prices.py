"""What one fused operator takes, compared with the same work done one after the other."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from validation.fused_cases import DLRM, SLICES
from validation.fused_dlrm import dlrm_step
from weft.fused import apart_all_to_all, fused_all_to_all
from weft.fused.operators import STREAM
from weft.schedule import SELF, Program, Queue, Repeat, Submit
from weft.simulator import simulate

if TYPE_CHECKING:
    from validation.fused_dlrm import Embedding
    from weft.hardware import Platform
    from weft.schedule import Schedule

# Calls into a network library inside a kernel cost it registers (2305.06942 v2).
OCCUPANCY = 0.875


def apart_nodes(node: Platform, num_nodes: int) -> Platform:
    """Return nodes with one rank each, joined by their nics."""
    cluster = node.cluster(num_nodes)
    return replace(cluster, name=f"{node.name} alone x{num_nodes}", levels=cluster.levels[-1:])


def saved_by_embedding(shape: Embedding, machine: Platform) -> float:
    """Return what fusing the lookups of a rank saves, in percent."""
    work = shape.sliced(machine.num_ranks, SLICES)
    units = machine.require_device().units
    fused = fused_all_to_all(work, units=units, occupancy=occupancy_on(machine))
    return percent_saved(fused, apart_all_to_all(work, units=library_units(machine)), machine)


def saved_by_step(node: Platform, num_nodes: int) -> float:
    """Return what fusing the lookups of a DLRM's step saves on one device a node, in percent."""
    machine, units = apart_nodes(node, num_nodes), node.require_device().units
    apart = simulate(dlrm_step(DLRM, num_nodes, units=None), machine).makespan
    fused = dlrm_step(DLRM, num_nodes, units=units, occupancy=OCCUPANCY)
    return 100 * (1 - simulate(fused, machine).makespan / apart)


def occupancy_on(machine: Platform) -> float:
    """Return the occupancy: kernels store to peers in a node, and call a library between nodes."""
    return OCCUPANCY if machine.levels[0].kind == "switch" else 1.0


def library_units(machine: Platform) -> int:
    """Return the units that fill a rank's links, its own part of the exchange included."""
    level = machine.levels[0]
    moved = level.rate * level.size / (level.size - 1)
    return ceil(moved / machine.require_device().unit_copy_rate)


def percent_saved(fused: Schedule, apart: Schedule, machine: Platform) -> float:
    """Return how much less time the fused operator takes."""
    seconds = [simulate(fed_by_host(each), machine).makespan for each in (fused, apart)]
    return 100 * (1 - seconds[0] / seconds[1])


def fed_by_host(schedule: Schedule) -> Schedule:
    """Return the schedule with a host thread that launches its kernels one by one."""

    def fed(program: Program) -> Program:
        (queue,) = program.queues
        submits = Repeat(len(queue.commands), (Submit(SELF, STREAM, 1),))
        return replace(program, queues=(Queue("host", (submits,)), queue))

    return replace(schedule, programs=tuple(fed(program) for program in schedule.programs))
