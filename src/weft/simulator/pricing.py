"""A Table priced on a platform: the columns that the native core lets run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.cost import kernel_flow
from weft.errors import ScheduleError
from weft.hardware.topology import latencies
from weft.schedule import Encode, Kernel, Kind, Launch
from weft.simulator import demands as on
from weft.simulator.demands import Demands

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.hardware import Device, Platform
    from weft.schedule import Table
    from weft.schedule.symmetry import Symmetry

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

MOVES = (Kind.COPY, Kind.BROADCAST, Kind.SWAP, Kind.REDUCE, Kind.ENCODE, Kind.DECODE)
_STEP = np.full(len(Kind), 5, np.uint8)  # a Call only marks a place
_STEP[[Kind.KERNEL, *MOVES]] = 0
_STEP[[Kind.SIGNAL, Kind.WAIT, Kind.LAUNCH, Kind.SUBMIT]] = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Priced:
    """Columns for the native core, and what is needed to read its answer."""

    columns: dict[str, Any]
    num_flags: int
    held: NDArray[np.bool_]  # rows that are prelaunched, before time zero
    held_cost: Floats


def price(table: Table, platform: Platform, symmetry: Symmetry) -> Priced:
    """What every row of ``table`` costs on ``platform``."""
    prices = _Prices(table, platform, symmetry)
    flag, num_flags = prices.flags()
    before, held, held_cost = prices.before()
    columns = {
        "step": _STEP[table.kind],
        "thread": table.thread,
        **_sequence(table),
        "before": before,
        "size": prices.size,
        "latency": prices.latency(),
        "flag": flag,
        "count": table.count,
        "fed": table.fed,
        "target": prices.target(),
        "units": prices.units,
        **prices.threads(),
        **prices.demand(),
    }
    return Priced(columns, num_flags, held, held_cost)


def _sequence(table: Table) -> dict[str, Any]:
    """Which row follows which, which is first in its thread, which lanes a launch has."""
    order = np.argsort(table.thread, kind="stable").astype(np.int32)
    thread = table.thread[order]
    same = np.append(thread[1:] == thread[:-1], False)  # noqa: FBT003 - nothing after the last
    following = np.full(table.num_rows, -1, np.int32)
    following[order[same]] = order[1:][same[:-1]]
    first = np.full(len(table.thread_rank), -1, np.int32)
    leads = np.concatenate(([True], ~same[:-1])) if len(same) else same
    first[thread[leads]] = order[leads]
    lanes = np.flatnonzero(table.thread_launch >= 0)
    by_launch = lanes[np.argsort(table.thread_launch[lanes], kind="stable")]
    start = np.zeros(table.num_rows + 1, np.int64)
    counts = np.bincount(table.thread_launch[by_launch], minlength=table.num_rows)
    np.cumsum(counts, out=start[1:])
    return {
        "next": following,
        "thread_first": first,
        "lanes_start": start,
        "lanes": by_launch.astype(np.int32),
    }


class _Prices:
    """The price of each row, column by column."""

    def __init__(self, table: Table, platform: Platform, symmetry: Symmetry) -> None:
        self.table = table
        self.platform = platform
        self.symmetry = symmetry
        self.rank = table.thread_rank[table.thread].astype(np.int64)
        queue_kinds = np.array([_queue_kind(name) for name in table.queues] or [""])
        self.thread_kind = queue_kinds[table.thread_queue]
        self.kind_of_queue = self.thread_kind[table.thread]
        self.in_lane = table.thread_lane[table.thread] >= 0
        self.kernels = np.flatnonzero(table.kind == Kind.KERNEL)
        self.size = self._sizes()
        self.units = self._units()

    @property
    def device(self) -> Device | None:
        return self.platform.device

    def _sizes(self) -> Floats:
        """Bytes that flow: what is written, what a kernel's traffic is, less what codecs save."""
        table = self.table
        last = np.maximum(table.access_start[1:] - 1, 0)
        size = np.zeros(table.num_rows)
        moving = np.isin(table.kind, MOVES)
        size[moving] = table.access_nbytes[last[moving]]
        ratios = dict(table.schedule.ratios)
        slots = {
            table.buffers.index(_buffer_of(table, number)): ratios.get(c.codec, 1.0)
            for number, c in enumerate(table.commands)
            if isinstance(c, Encode)
        }
        for slot, ratio in slots.items():
            copies = np.flatnonzero(table.kind == Kind.COPY)
            from_slot = table.access_buffer[table.access_start[copies]] == slot
            size[copies[from_slot]] /= ratio
        for number, command in self._commands(self.kernels, Kernel):
            flow = kernel_flow(command.cost, self.platform.require_device())
            size[self.kernels[self.table.command[self.kernels] == number]] = flow.size
        return size

    def _commands(self, rows: Ints, kind: type) -> Any:  # noqa: ANN401 - (number, command)
        for number in np.unique(self.table.command[rows]).tolist():
            command = self.table.commands[number]
            if isinstance(command, kind):
                yield number, command

    def _units(self) -> NDArray[np.int32]:
        """The units that launches take: as many as asked for, or as fill the links."""
        units = np.zeros(self.table.num_rows, np.int32)
        if self.device is None:
            return units
        rows = np.flatnonzero(self.table.kind == Kind.LAUNCH)
        enough = collective_units(self.platform)
        for number, command in self._commands(rows, Launch):
            wanted = enough if command.units is None else command.units
            if wanted > self.device.units:
                raise ScheduleError(
                    f"a Launch asks for {wanted} units; {self.device.name} has "
                    f"{self.device.units}.",
                    f"Ask for at most {self.device.units}.",
                )
            units[rows[self.table.command[rows] == number]] = wanted
        return units

    def flags(self) -> tuple[NDArray[np.int32], int]:
        """Numbers for the flags of the ranks that are simulated."""
        table = self.table
        rank = self.symmetry.representative(table.flag_rank.astype(np.int64))
        keys = rank * (table.schedule.num_flags + 1) + table.flag_index
        used = table.flag_rank >= 0
        unique, number = np.unique(keys[used], return_inverse=True)
        flag = np.full(table.num_rows, -1, np.int32)
        flag[used] = number.reshape(-1)
        return flag, len(unique)

    def before(self) -> tuple[Floats, NDArray[np.bool_], Floats]:
        """Seconds before a command acts; which rows are prelaunched, and what they cost."""
        table, device = self.table, self.device
        before = np.zeros(table.num_rows)
        submit = table.kind == Kind.SUBMIT
        held = submit & (table.flag_rank >= 0)
        held_cost = np.zeros(table.num_rows)
        if device is None:
            return before, held, held_cost
        started = (table.kind == Kind.LAUNCH) | ((table.kind == Kind.KERNEL) & ~self.in_lane)
        before[started] = device.launch
        if (self.kind_of_queue == "copy").any() or submit.any():
            dma = device.require_dma()
            moves = np.isin(table.kind, MOVES) & (self.kind_of_queue == "copy")
            packets = np.ceil(self.size[moves] / dma.packet_bytes)
            before[moves] = dma.start * np.maximum(packets, 1)
            cost = dma.doorbell + dma.control * self._handed_moves()
            before[submit] = cost[submit]
        held_cost[held] = before[held]
        before[held] = 0.0
        return before, held, held_cost

    def _handed_moves(self) -> Floats:
        """How many commands that move data each submission hands over."""
        table = self.table
        handed = np.zeros(table.num_rows)
        target = self.target()
        taken = dict.fromkeys(np.unique(target[target >= 0]).tolist(), 0)
        numbers = {
            thread: np.sort(table.fed[(table.thread == thread) & np.isin(table.kind, MOVES)])
            for thread in taken
        }
        for row in np.flatnonzero(table.kind == Kind.SUBMIT).tolist():
            thread, count = int(target[row]), int(table.count[row])
            low, high = np.searchsorted(numbers[thread], (taken[thread], taken[thread] + count))
            handed[row] = high - low
            taken[thread] += count
        return handed

    def latency(self) -> Floats:
        """Seconds from a signal to the moment its flag is seen raised."""
        table, device = self.table, self.device
        latency = np.zeros(table.num_rows)
        rows = np.flatnonzero(table.kind == Kind.SIGNAL)
        to = table.flag_rank[rows].astype(np.int64)
        latency[rows] = latencies(self.platform.levels, self.rank[rows], to)
        if device is None:
            return latency
        sender = self.kind_of_queue[rows]
        by_host = np.isin(self._flag_keys(rows), self._flag_keys(self._host_waits()))
        released = np.isin(
            self._flag_keys(rows), self._flag_keys(np.flatnonzero(table.kind == Kind.SUBMIT))
        )
        latency[rows] += np.where(to != self.rank[rows], device.signal, 0.0)
        from_host = sender == "host"
        latency[rows[from_host & by_host]] = 0.0  # threads of one node share its memory
        latency[rows[from_host & ~by_host]] = device.release
        latency[rows[from_host & released]] = device.release
        if device.dma is not None:
            latency[rows[~from_host & by_host]] = device.dma.sync
        return latency

    def _host_waits(self) -> Ints:
        waits = (self.table.kind == Kind.WAIT) & (self.kind_of_queue == "host")
        return np.flatnonzero(waits)

    def _flag_keys(self, rows: Ints) -> Ints:
        table = self.table
        return table.flag_rank[rows].astype(np.int64) << 32 | table.flag_index[rows]

    def target(self) -> NDArray[np.int32]:
        """The thread that each submission feeds."""
        table = self.table
        target = np.full(table.num_rows, -1, np.int32)
        rows = np.flatnonzero(table.kind == Kind.SUBMIT)
        if len(rows):
            queues = np.flatnonzero(table.thread_lane < 0)
            thread_of = {
                (int(table.thread_rank[t]), int(table.thread_queue[t])): t for t in queues.tolist()
            }
            for row in rows.tolist():
                key = (int(table.target_rank[row]), int(table.target_queue[row]))
                if key not in thread_of:
                    raise ScheduleError(
                        f"{table.where(row)} feeds {table.queues[key[1]]}@{key[0]}, which has "
                        "no commands."
                    )
                target[row] = thread_of[key]
        return target

    def threads(self) -> dict[str, Any]:
        """Who feeds a thread, where it takes units, and how it ranks."""
        table = self.table
        num = len(table.thread_rank)
        fed = np.zeros(num, np.uint8)
        fed[np.unique(self.target()[self.target() >= 0])] = 1
        fetch = np.zeros(num)
        pool = np.full(num, -1, np.int32)
        ranks = np.unique(table.thread_rank)
        if self.device is not None:
            if self.device.dma is not None:
                fetch[self.thread_kind == "copy"] = self.device.dma.fetch
            pool = np.searchsorted(ranks, table.thread_rank).astype(np.int32)
        priority = np.array([queue.priority for queue in table.thread_queue_of] or [0])
        return {
            "thread_launch": table.thread_launch,
            "thread_is_fed": fed,
            "thread_fetch": fetch,
            "thread_pool": pool,
            "thread_priority": priority[table.thread_decl].astype(np.int32),
        }

    def demand(self) -> dict[str, Any]:
        """What each row demands of which resource, and how many units each rank has."""
        demands = Demands()
        moved = on.transfers(self.table, self.size)
        on.add_network(demands, self.platform, self.symmetry, moved)
        device = self.device
        ranks = np.unique(self.table.thread_rank).astype(np.int64)
        pools = np.empty(0, np.int32)
        if device is not None:
            pools = np.full(len(ranks), device.units, np.int32)
            on.add_memory(demands, self.table, self.symmetry, self.size, device.memory_rate)
            self._add_launches(demands, device)
            self._add_engines(demands, device)
            self._add_kernels(demands, device)
        columns = demands.columns(self.table.num_rows)
        keys = columns["key"]
        place = np.searchsorted(keys, on.units_key(ranks)) if len(pools) else pools
        found = np.zeros(len(pools), bool)
        if len(keys) and len(pools):
            place = np.minimum(place, len(keys) - 1)
            found = keys[place] == on.units_key(ranks)
        return {
            **columns,
            "cap": np.full(self.table.num_rows, np.inf),
            "pool_units": pools,
            "pool_resource": np.where(found, place, -1).astype(np.int32),
        }

    def _add_launches(self, demands: Demands, device: Device) -> None:
        """What moves inside a launch is moved by its units."""
        rows = np.flatnonzero(self.in_lane & np.isin(self.table.kind, MOVES))
        launch = self.table.thread_launch[self.table.thread[rows]].astype(np.int64)
        capacity = self.units[launch] * device.unit_copy_rate
        demands.add(rows, on.launch_key(launch), 1.0, capacity)

    def _add_engines(self, demands: Demands, device: Device) -> None:
        """An engine writes at its rate: a broadcast to two costs it twice the bytes."""
        moves = np.isin(self.table.kind, MOVES) & (self.kind_of_queue == "copy")
        rows = np.flatnonzero(moves)
        if not len(rows):
            return
        writes = np.add.reduceat(self.table.access_mode >= 2, self.table.access_start[rows])  # noqa: PLR2004
        queue = self.table.thread_queue[self.table.thread[rows]]
        counts = np.where(self.table.kind[rows] == Kind.COPY, 1, writes)
        keys = on.engine_key(self.rank[rows], queue)
        demands.add(rows, keys, counts, device.require_dma().engine_rate)

    def _add_kernels(self, demands: Demands, device: Device) -> None:
        for number, command in self._commands(self.kernels, Kernel):
            rows = self.kernels[self.table.command[self.kernels] == number]
            flow = kernel_flow(command.cost, device)
            rank = self.rank[rows]
            if flow.memory:
                demands.add(rows, on.memory_key(rank), flow.memory, device.memory_rate)
            if flow.unit_seconds:
                demands.add(rows, on.units_key(rank), flow.unit_seconds, float(device.units))


def collective_units(platform: Platform) -> int:
    """The units a collective kernel takes when nobody says: enough to fill a rank's links."""
    device = platform.require_device()
    fastest = max((level.rate for level in platform.levels), default=0.0)
    return max(1, min(device.units, int(np.ceil(fastest / device.unit_copy_rate))))


def _queue_kind(name: str) -> str:
    return name.rstrip("0123456789")


def _buffer_of(table: Table, number: int) -> str:
    command = table.commands[number]
    if not isinstance(command, Encode):
        raise AssertionError(command)
    return command.dst.buffer
