"""What the figures of DMA engines are computed from: engines, RCCL for comparison, one copy.

RCCL is a kernel of weft's that writes to all peers at once, launched by a host thread of its own
on every rank. Three constants were fitted to three figures of arXiv 2511.06605 and serve here
alone: the all-reduce of RCCL reaches more of the links (310 to 336 GB/s) than its all-gather
does there.
"""

from dataclasses import dataclass, replace

import numpy as np

from weft.collectives import collective
from weft.collectives.dma_one_host import DONE, HOST, READY, SYNC
from weft.collectives.parts import own, signal, wait
from weft.hardware import Platform
from weft.schedule import SELF, Buffer, CommandKind, Copy, Program, Queue, Schedule, Slice, Submit
from weft.simulator import Energy, energy, simulate


@dataclass(frozen=True, slots=True)
class Rccl:
    """What calling RCCL costs, and how much of the links its kernels reach.

    ``launch`` is the host's part of one call, at the lower end of the 5 to 10 us that HIP
    takes (4.5x at small all-gathers). An all-to-all is a group of sends and receives, one of
    each for every peer; to enqueue one takes ``send`` (2.5x at small all-to-alls).
    ``link_share`` is what stores of a kernel reach of a link, compared with the longer bursts of
    an engine (16 % at large sizes).
    """

    launch: float = 5.0e-6
    send: float = 0.62e-6
    link_share: float = 0.85

    def host_seconds(self, kind: str, num_ranks: int) -> float:
        """Return what passes on the host before the kernel is on its way."""
        sends = 2 * (num_ranks - 1) if kind == "all_to_all" else 0
        return self.launch + self.send * sends


@dataclass(frozen=True, slots=True)
class Measured:
    """One collective: how long, and what it draws."""

    seconds: float
    watts: float


def one_copy(nbytes: int) -> Schedule:
    """Build one copy from rank 0 to rank 1, from the host call to the observed completion."""
    copy = Copy(own("in", 0, nbytes), Slice(1, "out", 0, nbytes))
    engine = Queue("copy0", (copy, signal(HOST, SYNC)), host=HOST)
    fed = (wait(READY), Submit(SELF, "copy0", 2), wait(SYNC), signal(1, DONE))
    other = Program((1,), (Queue("host", (signal(HOST, READY), wait(DONE))),))
    buffers = (Buffer("in", (nbytes, 0), "in"), Buffer("out", (0, nbytes), "out"))
    programs = (Program((HOST,), (engine, Queue("host", fed))), other)
    return Schedule("one copy", 2, programs, buffers, SYNC + 1)


def by_rccl(kind: str, nbytes: int, platform: Platform, rccl: Rccl | None = None) -> Measured:
    """Price ``kind`` as RCCL would do it: the host's part is spent at rest."""
    rccl = rccl or Rccl()
    levels = tuple(replace(each, rate=each.rate * rccl.link_share) for each in platform.levels)
    slower = replace(platform, levels=levels)
    schedule = collective(kind, "direct", num_ranks=platform.num_ranks, nbytes=nbytes)
    found = energy(simulate(schedule, slower), slower)
    before = rccl.host_seconds(kind, platform.num_ranks)
    idle = platform.require_device().power.idle * before
    seconds = found.seconds + before
    return Measured(seconds, (found.watts * found.seconds + idle) / seconds)


def by_engines(kind: str, algorithm: str, nbytes: int, platform: Platform) -> Measured:
    """Price ``kind`` by a DMA algorithm."""
    schedule = collective(kind, algorithm, num_ranks=platform.num_ranks, nbytes=nbytes)
    found: Energy = energy(simulate(schedule, platform), platform)
    return Measured(found.seconds, found.watts)


def phase_shares(nbytes: int, machine: Platform) -> tuple[float, ...]:
    """Return percent of one copy's time in control, schedule, copy and sync."""
    timeline = simulate(one_copy(nbytes), machine.resized(2))
    control = machine.require_device().require_dma().control
    copy, signal = (
        timeline.of(queue="copy", kind=kind) for kind in (CommandKind.COPY, CommandKind.SIGNAL)
    )
    ends = (0.0, control, float(copy.start[0]), float(signal.end[0]), timeline.seconds)
    return tuple(100 * np.diff(ends) / timeline.seconds)
