"""What a simulated execution draws from the wall: joules of all ranks, watts of one."""

from dataclasses import dataclass

import numpy as np

from weft.hardware import Platform
from weft.schedule import CommandKind
from weft.timeline import Timeline
from weft.timeline.intervals import GroupedIntervals, covered_by_group


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules of all ranks together, by component."""

    seconds: float
    num_ranks: int
    idle: float  # what every rank draws at rest
    active: float  # more of it while kernels are there, however little they do
    work: float  # busy units and engines, bytes through memories and links

    @property
    def joules(self) -> float:
        """All of it."""
        return self.idle + self.active + self.work

    @property
    def watts(self) -> float:
        """The mean power of one rank."""
        return self.joules / (self.num_ranks * self.seconds) if self.seconds > 0 else 0.0


def energy(timeline: Timeline, platform: Platform) -> Energy:
    """Add up what the ranks of ``timeline`` draw on ``platform`` from time zero to its end."""
    power = platform.require_device().power
    return Energy(
        seconds=timeline.seconds,
        num_ranks=timeline.num_ranks,
        idle=power.idle * timeline.num_ranks * timeline.seconds,
        active=power.active * _seconds_with_kernels(timeline),
        work=timeline.total_joules,
    )


def _seconds_with_kernels(timeline: Timeline) -> float:
    """Return the seconds in which a kernel is on a rank, on any of its streams, of all ranks."""
    kernels = np.isin(timeline.kind, (CommandKind.KERNEL, CommandKind.LAUNCH)) & (timeline.lane < 0)
    number = np.searchsorted(timeline.ranks, timeline.rank[kernels])
    times = GroupedIntervals(number, timeline.start[kernels], timeline.end[kernels])
    return float(covered_by_group(times, len(timeline.ranks)) @ timeline.represents)
