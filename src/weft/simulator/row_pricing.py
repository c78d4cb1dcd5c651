"""A Table priced on a platform: the columns that the native core lets run."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.cost.codec import codec_rates, is_priced
from weft.errors import ScheduleError
from weft.hardware import Device, Platform
from weft.hardware.topology import latencies
from weft.schedule import READ, CommandKind, CommandTable, Decode, Kernel
from weft.schedule.rank_symmetry import Symmetry
from weft.simulator.flows import demand_columns, flow_sizes, launch_units
from weft.simulator.rows import Rows
from weft.timeline import MOVES

Ints = NDArray[np.int64]
Numbers = NDArray[np.int32]
Floats = NDArray[np.float64]

_STEP = np.full(len(CommandKind), 5, np.uint8)  # a Call only marks a place
_STEP[[CommandKind.KERNEL, *MOVES]] = 0
_STEP[[CommandKind.SIGNAL, CommandKind.WAIT, CommandKind.LAUNCH, CommandKind.SUBMIT]] = (1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class PricedRows:
    """Columns for the native core, and what is needed to read its answer."""

    columns: dict[str, Any]
    num_flags: int
    held: NDArray[np.bool_]  # rows that are prelaunched, before time zero
    held_cost: Floats


def price(table: CommandTable, platform: Platform, symmetry: Symmetry) -> PricedRows:
    """Price every row of ``table`` on ``platform``."""
    rows = Rows.of(table, platform, symmetry)
    size, units, target = flow_sizes(rows), launch_units(rows), _targets(table)
    flag, num_flags = _flags(rows)
    before = _start_seconds(rows, size, target)
    # A submission with a flag is prelaunched: the host builds its commands before the step begins,
    # so they cost nothing in it but are reported apart.
    held = (table.kind == CommandKind.SUBMIT) & (table.flag_rank >= 0)
    columns = {
        "step": _STEP[table.kind],
        "thread": table.thread,
        **_sequence(table),
        "before": np.where(held, 0.0, before),
        "size": size,
        "latency": _latency(rows),
        "flag": flag,
        "count": table.count,
        "fed": table.fed,
        "target": target,
        "units": units,
        **_threads(rows, target),
        **_dispatch(rows),
        **demand_columns(rows, size, units),
    }
    return PricedRows(columns, num_flags, held, np.where(held, before, 0.0))


def _sequence(table: CommandTable) -> dict[str, Any]:
    """Return which row follows which, the first of each thread, and the lanes of each launch."""
    order = np.argsort(table.thread, kind="stable").astype(np.int32)
    thread = table.thread[order]
    leads = np.diff(thread, prepend=-1) != 0
    following = np.full(table.num_rows, -1, np.int32)
    following[order[:-1]] = np.where(leads[1:], -1, order[1:])
    first = np.full(len(table.thread_rank), -1, np.int32)
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


def _targets(table: CommandTable) -> Numbers:
    """Return the thread that each submission feeds."""
    target = np.full(table.num_rows, -1, np.int32)
    submits = np.flatnonzero(table.kind == CommandKind.SUBMIT)
    if not len(submits):
        return target
    queues = np.flatnonzero(table.thread_lane < 0)
    places = zip(
        table.thread_rank[queues].tolist(), table.thread_queue[queues].tolist(), strict=True
    )
    thread_of = dict(zip(places, queues.tolist(), strict=True))
    for row in submits.tolist():
        rank, queue = int(table.target_rank[row]), int(table.target_queue[row])
        if (rank, queue) not in thread_of:
            raise ScheduleError(
                f"{table.where(row)} feeds {table.queues[queue]}@{rank}, which has no commands."
            )
        target[row] = thread_of[rank, queue]
    return target


def _flags(rows: Rows) -> tuple[Numbers, int]:
    """Number the flags of the ranks that are simulated."""
    used = rows.table.flag_rank >= 0
    unique, number = np.unique(_flag_keys(rows)[used], return_inverse=True)
    flag = np.full(rows.table.num_rows, -1, np.int32)
    flag[used] = number.reshape(-1)
    return flag, len(unique)


def _flag_keys(rows: Rows) -> Ints:
    """Return the key of the flag of each row: its index, and the representative of its owner."""
    table = rows.table
    owner: Ints = rows.symmetry.representative(table.flag_rank.astype(np.int64))
    return owner * (table.schedule.num_flags + 1) + table.flag_index


def _start_seconds(rows: Rows, size: Floats, target: Numbers) -> Floats:
    """Return the seconds before bytes move: launches, starts of engines, submissions, far reads."""
    table, device = rows.table, rows.device
    before = np.zeros(table.num_rows)
    engines = rows.by_engine
    if engines.any():
        # A copy of more than `packet_bytes` is several packets, each with a start of its own.
        packets = np.ceil(size[engines] / rows.dma().packet_bytes)
        before[engines] = rows.dma().start * np.maximum(packets, 1)
        before[_copies_of_other_sources(rows)] += rows.dma().other_source
        before[_signals_after_copies(rows)] = rows.dma().drain
        before[_host_waits_for_engines(rows)] = rows.dma().observe
    if device is not None:
        launches = (table.kind == CommandKind.LAUNCH) | (
            (table.kind == CommandKind.KERNEL) & ~rows.in_lane
        )
        before[launches & (rows.queue_kind != "host")] = device.launch
        submits = np.flatnonzero(table.kind == CommandKind.SUBMIT)
        before[submits] = _submission(rows, submits, target, device)
    return before + rows.opaque + _read_round_trips(rows) + _codec_seconds(rows)


def _dispatch(rows: Rows) -> dict[str, Any]:
    """Return how long opaque kernels of more tiles than units delay the dispatch of others.

    Until its last wave such a kernel has tiles that wait for a unit, and those of a kernel that
    came later wait behind them. Nothing where no kernel is like that.
    """
    table, device = rows.table, rows.device
    if device is None:
        return {}
    tiles = [c.cost.tiles if isinstance(c, Kernel) else 1 for c in table.commands]
    waves = np.maximum(1.0, np.array([*tiles, 1])[table.command] / device.units)
    # The last of w waves begins after (w - 1) / w of the kernel.
    held = np.where(rows.opaque > 0, rows.opaque * (1 - 1 / waves), 0.0)
    bare = np.isin(table.kind, (CommandKind.KERNEL, CommandKind.LAUNCH)) & ~rows.in_lane
    bare &= rows.queue_kind == "stream"
    if not (held[bare] > 0).any():
        return {}
    return {"dispatch": np.where(bare, held + np.where(held > 0, device.launch, 0.0), -1.0)}


def _codec_seconds(rows: Rows) -> Floats:
    """Return the seconds that codecs take for their chunks, on top of what flows."""
    table, seconds = rows.table, np.zeros(rows.table.num_rows)
    for command, mine in rows.coded():
        if is_priced(command.codec):
            decodes = isinstance(command, Decode)
            rates = codec_rates(command.codec, rows.device)
            chunks = table.access_nbytes[table.access_start[mine] + decodes].tolist()
            seconds[mine] = [rates.seconds(chunk, decodes=decodes) for chunk in chunks]
    return seconds


def _copies_of_other_sources(rows: Rows) -> Ints:
    """Return engine copies that follow one of other bytes: theirs are requested only then."""
    table = rows.table
    after = np.flatnonzero(rows.by_engine[1:] & rows.by_engine[:-1] & (np.diff(table.thread) == 0))
    first = table.access_start[[after, after + 1]]
    columns = (table.access_rank, table.access_buffer, table.access_offset)
    same = np.all([column[first[0]] == column[first[1]] for column in columns], axis=0)
    others: Ints = after[~same] + 1
    return others


def _signals_after_copies(rows: Rows) -> Ints:
    """Return engine signals that follow a copy: what was written must have landed."""
    table = rows.table
    signals = np.flatnonzero((table.kind == CommandKind.SIGNAL) & (rows.queue_kind == "copy"))
    after = rows.by_engine[signals - 1] & (table.thread[signals - 1] == table.thread[signals])
    drained: Ints = signals[after & (signals > 0)]
    return drained


def _host_waits_for_engines(rows: Rows) -> Ints:
    """Return the waits of a host for engines: it polls one completion after another."""
    table, flags = rows.table, _flag_keys(rows)
    raised = flags[(table.kind == CommandKind.SIGNAL) & (rows.queue_kind == "copy")]
    waits = (table.kind == CommandKind.WAIT) & (rows.queue_kind == "host") & np.isin(flags, raised)
    return np.flatnonzero(waits)


def _read_round_trips(rows: Rows) -> Floats:
    """Return the seconds until a read of another rank arrives: a request and an answer."""
    table = rows.table
    seconds = np.zeros(table.num_rows)
    reads = np.flatnonzero(table.access_mode & READ)
    row = np.searchsorted(table.access_start, reads, side="right") - 1
    source = table.access_rank[reads].astype(np.int64)
    away = source != rows.rank[row]
    there_and_back = 2 * latencies(rows.platform.levels, rows.rank[row[away]], source[away])
    # Reads of one row are asked for together, so the farthest counts.
    np.maximum.at(seconds, row[away], there_and_back)
    return seconds


def _submission(rows: Rows, submits: Ints, target: Numbers, device: Device) -> Floats:
    """Return the seconds of submissions: one doorbell, and each command or kernel by itself."""
    to_engine = rows.thread_kind[target[submits]] == "copy"
    copies = _submitted_counts(rows.table, submits, target, rows.moves)
    kernels = np.isin(rows.table.kind, (CommandKind.KERNEL, CommandKind.LAUNCH)) & ~rows.in_lane
    seconds = np.zeros(len(submits))
    seconds += device.host_launch * _submitted_counts(rows.table, submits, target, kernels)
    if to_engine.any():
        dma = rows.dma()
        seconds[to_engine] = dma.doorbell + dma.control * copies[to_engine]
    return seconds


def _submitted_counts(
    table: CommandTable, submits: Ints, target: Numbers, counted: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return how many of the ``counted`` rows each submission hands over."""
    chosen = np.flatnonzero(counted & (table.fed >= 0))
    # A queue holds fewer commands than the table rows: one number for (thread, place) of each.
    span = table.num_rows + 1
    places = np.sort(table.thread[chosen].astype(np.int64) * span + table.fed[chosen])
    # Submissions hand the commands of a queue over in order: each takes up where the one before it
    # to the same queue stopped.
    thread, count = target[submits].astype(np.int64), table.count[submits]
    order = np.argsort(thread, kind="stable")
    until = np.cumsum(count[order])
    leads = np.flatnonzero(np.diff(thread[order], prepend=-1))
    taken = np.zeros(len(order), np.int64)
    taken[leads] = until[leads] - count[order][leads]
    stop = np.empty(len(order), np.int64)
    stop[order] = until - np.maximum.accumulate(taken)
    ends = (thread * span + np.minimum(place, span - 1) for place in (stop - count, stop))
    low, high = (np.searchsorted(places, end) for end in ends)
    return high - low


def _latency(rows: Rows) -> Floats:
    """Return the seconds from a signal to the moment its flag is seen raised."""
    table, device = rows.table, rows.device
    latency = np.zeros(table.num_rows)
    signals = np.flatnonzero(table.kind == CommandKind.SIGNAL)
    here, there = rows.rank[signals], table.flag_rank[signals].astype(np.int64)
    seconds = latencies(rows.platform.levels, here, there)
    if device is not None:
        seconds += np.where(here != there, device.signal, 0.0)
        _by_host(rows, signals, seconds, device)
    latency[signals] = seconds
    return latency


def _by_host(rows: Rows, signals: Ints, seconds: Floats, device: Device) -> None:
    """Price signals that a host sends or waits for; only those to other nodes cross links."""
    table = rows.table
    ends = rows.rank[signals], table.flag_rank[signals].astype(np.int64)
    nodes = [end // rows.platform.node_size for end in ends]
    far = np.where(nodes[0] == nodes[1], 0.0, latencies(rows.platform.levels, *ends))
    flags = _flag_keys(rows)
    host_waits = (table.kind == CommandKind.WAIT) & (rows.queue_kind == "host")
    holds = (table.kind == CommandKind.SUBMIT) & (table.flag_rank >= 0)
    from_host = rows.queue_kind[signals] == "host"
    to_host = np.isin(flags[signals], flags[host_waits])
    released = np.isin(flags[signals], flags[holds])
    inside = from_host & to_host  # threads of one node share its memory
    seconds[inside] = far[inside]
    into_device = from_host & (released | ~to_host)
    seconds[into_device] = device.release + far[into_device]
    if device.dma is not None:
        seen = ~from_host & to_host
        seconds[seen] = device.dma.sync + far[seen]


def _threads(rows: Rows, target: Numbers) -> dict[str, Any]:
    """Return which thread feeds a thread, which units it uses, and its priority."""
    table = rows.table
    fed = np.zeros(len(table.thread_rank), np.uint8)
    fed[target[target >= 0]] = 1
    fetch = np.zeros(len(fed))
    pool = np.full(len(fed), -1, np.int32)
    if rows.device is not None:
        pool = np.searchsorted(rows.ranks, table.thread_rank).astype(np.int32)
    if rows.by_engine.any():
        fetch[rows.thread_kind == "copy"] = rows.dma().fetch
    priority = np.array([queue.priority for queue in table.thread_queue_of] or [0])
    return {
        "thread_launch": table.thread_launch,
        "thread_is_fed": fed,
        "thread_fetch": fetch,
        "thread_pool": pool,
        "thread_priority": priority[table.thread_decl].astype(np.int32),
    }
