"""A machine with round numbers, for times that are worked out on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from weft.hardware import Device, Dma, Flops, Host, Level, Platform, Power
from weft.schedule import (
    SELF,
    Buffer,
    Command,
    Copy,
    Cost,
    Flag,
    Kernel,
    Launch,
    Program,
    Queue,
    Repeat,
    Schedule,
    Signal,
    Slice,
    Wait,
)
from weft.simulator import simulate

US, GB = 1e-6, 1e9
MB = 1_000_000

DMA = Dma(
    num_engines=2,
    engine_rate=10 * GB,
    control=1 * US,
    doorbell=2 * US,
    fetch=3 * US,
    start=4 * US,
    sync=5 * US,
    packet_bytes=10 * MB,
)
POWER = Power(idle=100.0, unit=1.0, engine=2.0, memory_byte=1e-12, link_byte=1e-9)
DEVICE = Device(
    name="paper",
    title="Paper",
    vendor="us",
    units=100,
    unit_grain=1,
    unit_copy_rate=1 * GB,
    memory_rate=100 * GB,
    memory_rated=100 * GB,
    memory_bytes=1 << 40,
    l2_bytes=1 << 20,
    last_level_bytes=1 << 20,
    launch=1 * US,
    host_launch=6 * US,
    signal=0.5 * US,
    release=7 * US,
    flops={"fp32": Flops(100e12, 100e12)},
    power=POWER,
    dma=DMA,
)
HOST = Host(memory_rate=40 * GB, link_rate=10 * GB, link_latency=1 * US)


def bare(*levels: Level) -> Platform:
    return Platform("bare", levels=levels)


def machine(num_ranks: int = 2, rate: float = 10 * GB, device: Device = DEVICE) -> Platform:
    """Devices on one switch without latency."""
    return Platform("paper", device=device, levels=(Level("switch", num_ranks, rate),))


def without_costs(device: Device = DEVICE) -> Device:
    """Only rates are left."""
    free = replace(DMA, control=0.0, doorbell=0.0, fetch=0.0, start=0.0, sync=0.0)
    return replace(device, launch=0.0, host_launch=0.0, signal=0.0, release=0.0, dma=free)


def move(src: int, dst: int, nbytes: int) -> Copy:
    return Copy(Slice(src, "x", 0, nbytes), Slice(dst, "y", 0, nbytes))


def matmul(seconds: float, units: int = 100, nbytes: int = 0) -> Kernel:
    """A kernel that takes ``seconds`` on ``units`` units, and ``nbytes`` of memory traffic."""
    return Kernel("matmul", Cost(dtype="fp32", flops=seconds * units * 1e12, nbytes=nbytes))


def launch(*lanes: tuple[Command, ...], units: int | None = None) -> Launch:
    return Launch(lanes, units)


def tell(rank: int, flag: int = 0) -> Signal:
    return Signal(Flag(rank, flag))


def hear(flag: int = 0, count: int = 1) -> Wait:
    return Wait(Flag(SELF, flag), count)


def queue(
    name: str,
    *commands: Command | Repeat,
    priority: int = 0,
    units: tuple[int, int] | None = None,
) -> Queue:
    return Queue(name, commands, priority=priority, units=units)


def made(num_ranks: int, ranks: Mapping[int, Sequence[Queue]]) -> Schedule:
    """What each of ``ranks`` does on its queues."""
    programs = tuple(Program((rank,), tuple(queues)) for rank, queues in ranks.items())
    buffers = (Buffer("x", 1 << 40), Buffer("y", 1 << 40))
    return Schedule("by hand", num_ranks, programs, buffers, num_flags=8)


def spans(schedule: Schedule, platform: Platform) -> dict[tuple[int, str, int], Any]:
    """(start, end) by (rank, queue, id)."""
    timeline = simulate(schedule, platform, collapse=False)
    return {(s.rank, s.queue, s.id): (s.start, s.end) for s in timeline.spans()}


def lasted(found: Mapping[tuple[int, str, int], Any], *place: Any) -> float:
    """How long the span at (rank, queue, id) took."""
    start, end = found[place]
    return float(end - start)


def close(seconds: Any) -> Any:
    """The same up to rounding."""
    return pytest.approx(seconds, rel=1e-9, abs=1e-15)
