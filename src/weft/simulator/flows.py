"""What flows: the bytes of each row, the units of launches, and all that both demand."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.cost import is_gemm, kernel_flow
from weft.cost.codec import is_priced
from weft.errors import ScheduleError
from weft.hardware import Device, Platform
from weft.schedule import READ, WRITE, CommandKind, Copy, Decode, Encode, Launch, queue_kind
from weft.simulator.grids import add_grids, grid_columns, grid_sizes
from weft.simulator.port_network import add_network, transfers
from weft.simulator.resource_demands import Demands, Resource, key
from weft.simulator.rows import Rows, masked_units
from weft.simulator.working_sets import Seconds, add_shared_memory, seconds_per_byte

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Units = NDArray[np.int32]


def flow_sizes(rows: Rows) -> Floats:
    """Return the bytes that flow: written bytes, the traffic of kernels, less what codecs save."""
    table = rows.table
    size = _listed_bytes(rows)
    ratios = dict(table.schedule.ratios)
    # Copies between an Encode and its Decode move frames: what reads a slot of a codec moves 1 /
    # ratio of the bytes that the schedule lists.
    slots = {c.dst.buffer: ratios.get(c.codec, 1.0) for c, _, _ in rows.of_kind(Encode)}
    for command, mine in rows.coded():
        if is_priced(command.codec):
            size[mine] = _sent(rows, command, mine, ratios.get(command.codec, 1.0))
    for copy, _, mine in rows.of_kind(Copy) if slots else ():
        size[mine] /= slots.get(copy.src.buffer, 1.0)
    for kernel, _, mine in rows.kernels():
        if not (is_gemm(kernel.cost) and not rows.in_lane[mine[0]]):
            size[mine] = kernel_flow(kernel.cost, rows.platform.require_device()).size
    grid_sizes(rows, size)
    return size


def _sent(rows: Rows, command: Encode | Decode, mine: Ints, ratio: float) -> Floats:
    """Return the bytes that a codec sends or reads: encoded ones if the slot is another rank's.

    None for slots of the rank itself: the price of a codec includes its memory traffic.
    """
    table, first = rows.table, rows.table.access_start[mine]
    decodes = isinstance(command, Decode)
    far = table.access_rank[first] != table.access_rank[first + 1]
    slot_is_far = table.access_rank[first + (not decodes)] != rows.rank[mine]
    sent: Floats = far * table.access_nbytes[first + decodes] / np.where(slot_is_far, ratio, 1.0)
    return sent


def _listed_bytes(rows: Rows) -> Floats:
    """Return the bytes that each row writes by its commands, before codecs make them fewer."""
    table = rows.table
    size = np.zeros(table.num_rows)
    size[rows.moves] = table.access_nbytes[table.access_start[1:][rows.moves] - 1]
    return size


def launch_units(rows: Rows) -> Units:
    """Return the units of launches: those that were asked for, or those that fill the links."""
    units = np.zeros(rows.table.num_rows, np.int32)
    if rows.device is None:
        return units
    for launch, queue, mine in rows.of_kind(Launch):
        most = masked_units(queue, rows.device)
        enough = collective_units(rows.platform, launch.family)
        wanted = min(enough, most) if launch.units is None else launch.units
        if not 1 <= wanted <= most:
            raise ScheduleError(
                f"{rows.table.where(int(mine[0]))} asks for {wanted} units; "
                f"{rows.device.name} has {most} for it.",
                f"Ask for 1 to {most}.",
            )
        units[mine] = wanted
    return units


def collective_units(platform: Platform, family: str = "") -> int:
    """Return the default units of a collective kernel: enough to fill a rank's links."""
    device = platform.require_device()
    if known := device.kernels.units_of(family):
        return min(known, device.units)
    fastest = max((level.rate for level in platform.levels), default=0.0)
    return max(1, min(device.units, int(np.ceil(fastest / device.unit_copy_rate))))


def unit_rate(platform: Platform, family: str) -> float:
    """Return the bytes per second of one unit of a collective kernel, its own chunk included.

    Where it is known how many units fill the links, those and no fewer do.
    """
    device = platform.require_device()
    known = device.kernels.units_of(family)
    if not known or not platform.levels:
        return device.unit_copy_rate
    level = platform.levels[0]
    # Units copy all n chunks of which n - 1 cross the port, so filling the port takes n / (n - 1)
    # of its rate.
    return level.rate * level.size / max(1, level.size - 1) / known


def demand_columns(rows: Rows, size: Floats, units: Units) -> dict[str, Any]:
    """Return what each row demands of which resource, its cap, and the units of each rank."""
    demands = Demands()
    add_network(demands, rows.platform, rows.symmetry, transfers(rows.table, size))
    cap = np.full(rows.table.num_rows, np.inf)
    ranks, pools = rows.ranks, np.empty(0, np.int32)
    if (device := rows.device) is not None:
        pools = np.full(len(ranks), device.units, np.int32)
        seconds = None if device.shared is None else seconds_per_byte(rows, size, device.shared)
        if seconds is None:
            _add_memory(demands, rows, device)
            _add_staging(demands, rows, device)
        else:
            add_shared_memory(demands, rows, np.flatnonzero(rows.moves), seconds.memory)
        _add_launches(demands, rows, units, device, seconds)
        _add_engines(demands, rows, seconds)
        _add_kernels(demands, rows, units, cap, device)
        add_grids(demands, rows, size, cap)
    columns = demands.columns(rows.table.num_rows)
    numbers = {k: number for number, k in enumerate(columns["key"].tolist())}
    wanted = key(Resource.UNITS, ranks)[: len(pools)].tolist()
    resource = np.array([numbers.get(k, -1) for k in wanted], np.int32)
    columns |= {"cap": cap, "pool_units": pools, "pool_resource": resource}
    return columns | grid_columns(rows, size, columns)


def _add_memory(demands: Demands, rows: Rows, device: Device) -> None:
    """Add the memory of each byte's owner: every byte read or written passes it."""
    table, listed = rows.table, _listed_bytes(rows)
    row = np.repeat(np.arange(table.num_rows), np.diff(table.access_start))
    # A slice that is read and written in place passes twice.
    passes = np.where(table.access_mode == READ | WRITE, 2, 1)
    # A demand is per byte that flows, and a row flows as many bytes as it writes at one place.
    weight = passes * table.access_nbytes / np.maximum(listed[row], 1)
    used = (table.kind[row] != CommandKind.KERNEL) & (weight > 0)
    owner = rows.symmetry.representative(table.access_rank.astype(np.int64)[used])
    demands.add(row[used], key(Resource.MEMORY, owner), weight[used], device.memory_rate)


def _add_staging(demands: Demands, rows: Rows, device: Device) -> None:
    """Add the copies out of the buffers in which a collective's kernel receives."""
    table = rows.table
    staged = [launch for c, _, mine in rows.of_kind(Launch) if c.family for launch in mine.tolist()]
    if not device.kernels.staging:
        return
    inside = np.isin(table.thread_launch[table.thread], staged)
    mine = np.flatnonzero(inside & (table.kind == CommandKind.COPY))
    receiver = table.access_rank[table.access_start[mine + 1] - 1].astype(np.int64)
    far = receiver != rows.rank[mine]
    owner = rows.symmetry.representative(receiver[far])
    weight = device.kernels.staging
    demands.add(mine[far], key(Resource.MEMORY, owner), weight, device.memory_rate)


def _add_launches(
    demands: Demands, rows: Rows, units: Units, device: Device, seconds: Seconds | None
) -> None:
    """Add the demands inside launches, whose units move the bytes."""
    mine = np.flatnonzero(rows.in_lane & rows.moves)
    launch = rows.table.thread_launch[rows.table.thread[mine]].astype(np.int64)
    rate = _unit_rates(rows, device)
    weight = 1.0 if seconds is None else seconds.core[mine] * rate[launch]
    demands.add(mine, key(Resource.LAUNCH, launch), weight, units[launch] * rate[launch])


def _unit_rates(rows: Rows, device: Device) -> Floats:
    """Return the rate of a unit of each launch, by the row of the launch."""
    rate = np.full(rows.table.num_rows, device.unit_copy_rate)
    for command, _, row in rows.of_kind(Launch):
        rate[row] = unit_rate(rows.platform, command.family)
    return rate


def _add_engines(demands: Demands, rows: Rows, seconds: Seconds | None) -> None:
    """Add the demands of engines: two destinations cost twice the bytes and the turning.

    Queues beyond the engines that there are share them in turn.
    """
    mine = np.flatnonzero(rows.by_engine)
    if not len(mine):
        return
    table, dma, writes = rows.table, rows.dma(), rows.num_writes[mine]
    engine = _numbers(table.queues)[table.thread_queue[table.thread[mine]]] % dma.num_engines
    keys = key(Resource.ENGINE, rows.rank[mine], part=engine)
    turning = np.where(table.kind[mine] == CommandKind.SWAP, dma.swapping, dma.turning)
    weight: Floats = np.where(writes > 1, writes * turning, 1.0)
    if seconds is not None:
        weight = seconds.core[mine] * dma.engine_rate
    demands.add(mine, keys, weight, dma.engine_rate)


def _numbers(queues: tuple[str, ...]) -> Ints:
    """Return the number in each name: 3 of copy3."""
    digits = (name[len(queue_kind(name)) :] for name in queues)
    return np.array([int(number or 0) for number in digits])


def _add_kernels(demands: Demands, rows: Rows, units: Units, cap: Floats, device: Device) -> None:
    """Add kernels: bare ones use units that no launch holds, those in a lane their launch's."""
    rates = _unit_rates(rows, device)
    for kernel, queue, mine in rows.kernels():
        launch = rows.table.thread_launch[rows.table.thread[mine]].astype(np.int64)
        # A bare GEMM is a grid of tiles (grids.py); in a lane it has the units of its launch.
        if is_gemm(kernel.cost) and launch[0] < 0:
            continue
        flow = kernel_flow(kernel.cost, device)
        rank, seconds = rows.rank[mine], flow.unit_seconds
        if flow.memory:
            demands.add(mine, key(Resource.MEMORY, rank), flow.memory, device.memory_rate)
        if seconds and launch[0] >= 0:
            rate = rates[launch]  # what moves there counts units by their bytes
            demands.add(mine, key(Resource.LAUNCH, launch), seconds * rate, units[launch] * rate)
        elif seconds:
            demands.add(mine, key(Resource.UNITS, rank), seconds, float(device.units))
            if queue.units:
                cap[mine] = masked_units(queue, device) / seconds
