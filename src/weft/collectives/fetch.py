"""Many small copies from host memory to a device: fetching blocks of a KV cache.

Host memory is rank 1 of a two-rank platform whose link is the device's link to its host. There are
four methods: one runtime call per block (``per-copy``), one call for all (``batched``), commands
written directly to the engine queues with many per doorbell and one signal at the end (``b2b``),
and one kernel that reads host memory itself (``kernel``).
"""

from dataclasses import replace

from weft.collectives.parts import Items, launched, own, signal, wait
from weft.errors import PlatformError, UnknownNameError, UsageError, nearest
from weft.hardware import Level, Platform
from weft.schedule import SELF, Buffer, Copy, Program, Queue, Rel, Repeat, Schedule, Slice, Submit

FETCH_METHODS = ("per-copy", "batched", "b2b", "kernel")
DEVICE, HOST_MEMORY = 0, 1
READY, DONE, SYNC = 0, 1, 2  # completion flags count on from the last
PER_DOORBELL = 64  # commands that b2b submits at once: the engine starts while more are written
WORKGROUPS = 64  # of the kernel: this many blocks are in flight at once


def fetch(num_blocks: int, block_bytes: int, method: str, *, engines: int = 1) -> Schedule:
    """Build copies of ``num_blocks`` blocks from host memory to the device.

    ``method`` is one of FETCH_METHODS.
    """
    if method not in FETCH_METHODS:
        raise UnknownNameError(f"unknown fetch method {method!r}.", nearest(method, FETCH_METHODS))
    if num_blocks < 1 or block_bytes < 1:
        raise UsageError(
            f"num_blocks and block_bytes must be positive (got {num_blocks} and {block_bytes}).",
            "Use 1 or more.",
        )
    if num_blocks * block_bytes >= 1 << 63:
        raise UsageError(
            f"num_blocks: {num_blocks} blocks of {block_bytes} bytes are 2^63 bytes or more."
        )
    if method == "b2b" and not 1 <= engines <= num_blocks:
        raise UsageError(
            f"engines: {num_blocks} blocks cannot be divided among {engines} engines.",
            f"Use 1 to {num_blocks} engines.",
        )
    if engines != 1 and method != "b2b":
        raise UsageError(
            f"engines: {method} uses one engine or none (got {engines}).",
            "Use b2b for several engines.",
        )
    if method == "kernel":
        queues = _by_kernel(num_blocks, block_bytes)
    else:
        queues = _by_engines(num_blocks, block_bytes, method, engines)
    total = num_blocks * block_bytes
    buffers = (Buffer("pool", (0, total), "in"), Buffer("cache", (total, 0), "out"))
    owner = Queue("host", (signal(DEVICE, READY), wait(DONE)))
    programs = (Program((DEVICE,), queues), Program((HOST_MEMORY,), (owner,)))
    return Schedule(f"{method} fetch", 2, programs, buffers, SYNC + engines)


def fetch_platform(
    platform: Platform, method: str, *, engines: int = 1, block_bytes: int = 0
) -> Platform:
    """Return a platform of one device and its host's memory, with the overheads of ``method``.

    Through the runtime, blocks of more than ``small_copy`` bytes are copied one after another.
    """
    if platform.host is None:
        raise PlatformError(
            f"platform {platform.name} does not describe the link to its host",
            "Add a [host] table with memory_rate, link_rate and link_latency to its file.",
        )
    device = platform.require_device()
    link = Level("switch", 2, platform.host.link_rate, platform.host.link_latency)
    if method != "kernel":
        dma = device.require_dma()
        if not 1 <= engines <= dma.host_engines:
            raise UsageError(
                f"engines: {device.name} has {dma.host_engines} engines for copies from its host "
                f"(got {engines}).",
                f"Use 1 to {dma.host_engines}.",
            )
        calls = {"per-copy": dma.call, "batched": dma.batched_call}
        call = calls.get(method, dma.doorbell + dma.control)
        called = replace(dma, control=max(call - dma.doorbell, 0.0))
        if method in calls and block_bytes > dma.small_copy:
            called = replace(called, start=dma.large_start)
        device = replace(device, dma=called)
    return replace(platform, device=device, levels=(link,), node_levels=1, staged=False)


def _share(num_blocks: int, parts: int, part: int) -> range:
    """Return the blocks of one of several equal parts."""
    return range(num_blocks * part // parts, num_blocks * (part + 1) // parts)


def _blocks(which: range, block_bytes: int) -> Items:
    """Return copies of consecutive blocks, one after another."""
    place = Rel(which.start * block_bytes, (block_bytes,))
    src = Slice(HOST_MEMORY, "pool", place, block_bytes)
    return (Repeat(len(which), (Copy(src, own("cache", place, block_bytes)),)),)


def _by_engines(num_blocks: int, block_bytes: int, method: str, engines: int) -> tuple[Queue, ...]:
    each = PER_DOORBELL if method == "b2b" else 1
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
    """Return the host queue: ``commands`` between the entry and the exit of the pool's owner."""
    return Queue("host", (wait(READY), *commands, signal(HOST_MEMORY, DONE)))
