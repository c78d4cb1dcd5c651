"""Many small copies from the host's memory to a device: blocks of a KV cache fetched back.

The host's memory stands as rank 1 of a platform of two ranks whose link is the device's link
to its host. Four ways: a call of the runtime for each block (``per-copy``), one call for all
(``batched``), commands written to the engines' queues directly, many to a doorbell and one
signal at the end (``b2b``), and one kernel that reads the host's memory itself (``kernel``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.collectives.parts import launched, own, signal, wait
from weft.errors import PlatformError, UnknownNameError, UsageError, nearest
from weft.hardware import Level
from weft.schedule import SELF, Buffer, Copy, Program, Queue, Rel, Repeat, Schedule, Slice, Submit

if TYPE_CHECKING:
    from weft.collectives.parts import Items
    from weft.hardware import Platform

WAYS = ("per-copy", "batched", "b2b", "kernel")
DEVICE, HOST_MEMORY = 0, 1
READY, DONE, SYNC = 0, 1, 2  # completions count on from the last
PER_DOORBELL = 64  # commands that b2b hands over at once: the engine begins while more are built
WORKGROUPS = 64  # of the kernel: so many blocks are under way at once


def fetch(num_blocks: int, block_bytes: int, way: str, *, engines: int = 1) -> Schedule:
    """Bring ``num_blocks`` blocks from the host's memory to the device, one of WAYS."""
    if way not in WAYS:
        raise UnknownNameError(f"no way to fetch is called {way!r}.", nearest(way, WAYS))
    if num_blocks < 1 or block_bytes < 1:
        raise UsageError(
            f"{num_blocks} blocks of {block_bytes} bytes are nothing to fetch.", "Use 1 or more."
        )
    if way == "b2b" and not 1 <= engines <= num_blocks:
        raise UsageError(
            f"{num_blocks} blocks cannot be shared by {engines} engines.",
            f"Use 1 to {num_blocks} engines.",
        )
    if engines != 1 and way != "b2b":
        raise UsageError(
            f"{way} uses one engine or none, not {engines}.", "Use b2b for several engines."
        )
    if way == "kernel":
        queues = _by_kernel(num_blocks, block_bytes)
    else:
        queues = _by_engines(num_blocks, block_bytes, way, engines)
    total = num_blocks * block_bytes
    buffers = (Buffer("pool", (0, total), "in"), Buffer("cache", (total, 0), "out"))
    owner = Queue("host", (signal(DEVICE, READY), wait(DONE)))
    programs = (Program((DEVICE,), queues), Program((HOST_MEMORY,), (owner,)))
    return Schedule(f"{way} fetch", 2, programs, buffers, SYNC + engines)


def fetch_platform(
    platform: Platform, way: str, *, engines: int = 1, block_bytes: int = 0
) -> Platform:
    """One device of ``platform`` and its host's memory, with what ``way`` pays for a command.

    Through the runtime, blocks of more than ``small_copy`` bytes go one behind the other.
    """
    if platform.host is None:
        raise PlatformError(
            f"{platform.name} does not say how its devices reach their host",
            "Give its file a [host] table with memory_rate, link_rate and link_latency.",
        )
    device = platform.require_device()
    link = Level("switch", 2, platform.host.link_rate, platform.host.link_latency)
    if way != "kernel":
        dma = device.require_dma()
        if not 1 <= engines <= dma.host_engines:
            raise UsageError(
                f"{device.name} has {dma.host_engines} engines for copies from its host, "
                f"{engines} were asked for.",
                f"Use 1 to {dma.host_engines}.",
            )
        calls = {"per-copy": dma.call, "batched": dma.batched_call}
        call = calls.get(way, dma.doorbell + dma.control)
        called = replace(dma, control=max(call - dma.doorbell, 0.0))
        if way in calls and block_bytes > dma.small_copy:
            called = replace(called, start=dma.large_start)
        device = replace(device, dma=called)
    return replace(platform, device=device, levels=(link,), node_levels=1, staged=False)


def _share(num_blocks: int, parts: int, part: int) -> range:
    """The blocks of one of several equal parts."""
    return range(num_blocks * part // parts, num_blocks * (part + 1) // parts)


def _blocks(which: range, block_bytes: int) -> Items:
    """Copies of consecutive blocks, one after another."""
    place = Rel(which.start * block_bytes, (block_bytes,))
    src = Slice(HOST_MEMORY, "pool", place, block_bytes)
    return (Repeat(len(which), (Copy(src, own("cache", place, block_bytes)),)),)


def _by_engines(num_blocks: int, block_bytes: int, way: str, engines: int) -> tuple[Queue, ...]:
    each = PER_DOORBELL if way == "b2b" else 1
    queues, submits, waits = [], [], []
    for number in range(engines):
        which = _share(num_blocks, engines, number)
        name = f"copy{number}"
        queues.append(Queue(name, (*_blocks(which, block_bytes), signal(SELF, SYNC + number))))
        full, rest = divmod(len(which) + 1, each)
        handed: Items = (Repeat(full, (Submit(SELF, name, each),)),) if full else ()
        submits.append((*handed, *((Submit(SELF, name, rest),) if rest else ())))
        waits.append(wait(SYNC + number))
    commands = tuple(command for each in submits for command in each)
    return (*queues, _host((*commands, *waits)))


def _by_kernel(num_blocks: int, block_bytes: int) -> tuple[Queue, ...]:
    workgroups = min(num_blocks, WORKGROUPS)
    lanes = [
        _blocks(_share(num_blocks, workgroups, number), block_bytes) for number in range(workgroups)
    ]
    stream = launched(*lanes)
    commands = (*stream.commands, signal(SELF, SYNC))
    host = _host((Submit(SELF, stream.name, len(commands)), wait(SYNC)))
    return (replace(stream, commands=commands), host)


def _host(commands: Items) -> Queue:
    """The thread that feeds the device, between the entry and the exit of the pool's owner."""
    return Queue("host", (wait(READY), *commands, signal(HOST_MEMORY, DONE)))
