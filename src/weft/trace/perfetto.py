"""Timelines as Chrome trace events, which Perfetto and chrome://tracing open.

A rank is a process, a queue or a lane of it is a thread. Times are microseconds with nanosecond
fractions; both ends of a span are rounded, never its length, so that spans nested in time are
nested in the file.
"""

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.timeline import Activity, Timeline, queue_order
from weft.timeline.intervals import assign_rows

Ints = NDArray[np.int64]


def write_perfetto(path: Path | str, *timelines: Timeline, labels: Sequence[str] = ()) -> None:
    """Write timelines, one below the other, to a ``.json`` or ``.json.gz`` file.

    ``labels`` say what each is; without them it is what tells them apart: whether it was predicted
    or measured, or its name.
    """
    write_trace(path, perfetto_json(*timelines, labels=labels))


def write_trace(path: Path | str, text: bytes) -> None:
    """Write the text of a trace file, compressed if its name ends in .gz."""
    path = Path(path)
    if path.suffix == ".gz":
        text = gzip.compress(text, compresslevel=3, mtime=0)
    path.write_bytes(text)


def perfetto_json(*timelines: Timeline, labels: Sequence[str] = ()) -> bytes:
    """Return the JSON text of these timelines."""
    if not labels:
        told = len({timeline.basis for timeline in timelines}) > 1
        labels = [timeline.basis if told else timeline.schedule for timeline in timelines]
    first_pid = 0
    parts: list[str] = []
    zero = max((-nanoseconds(t.start).min(initial=0) for t in timelines), default=0)
    for number, timeline in enumerate(timelines):
        prefix = f"{labels[number]}: " if len(timelines) > 1 else ""
        layout = _Layout(timeline, first_pid, prefix, int(zero), number)
        parts += _metadata(layout)
        parts += _spans(layout)
        parts += _arrows(layout)
        first_pid += int(timeline.ranks.max(initial=0)) + 1
    about = [
        {"schedule": t.schedule, "platform": t.platform, "basis": t.basis, "ranks": t.num_ranks}
        for t in timelines
    ]
    tail = f'],"displayTimeUnit":"ns","otherData":{json_text({"weft": about})}}}\n'
    return ('{"traceEvents":[\n' + ",\n".join(parts) + tail).encode()


class _Layout:
    """Maps the spans of one timeline to processes, threads and nanoseconds."""

    def __init__(self, timeline: Timeline, pid: int, prefix: str, zero: int, number: int) -> None:
        self.timeline = timeline
        self.prefix = prefix
        self.number = number
        self.start = nanoseconds(timeline.start) + zero
        self.end = np.maximum(nanoseconds(timeline.end) + zero, self.start)
        self.pid = timeline.rank.astype(np.int64) + pid
        self.first_pid = pid
        self.tid, self.threads = _threads(timeline, self.start, self.end)


class _Thread(NamedTuple):
    """One row of the display: a queue, a lane, or one of several sends in flight."""

    queue: int
    lane: int
    flight: int


def _threads(timeline: Timeline, start: Ints, end: Ints) -> tuple[Ints, list[_Thread]]:
    """Assign each span to a display row; rows are numbered in display order."""
    flight = _flights(timeline, start, end)
    columns = np.stack([timeline.queue, timeline.lane, flight]).astype(np.int64)
    found, tid = np.unique(columns, axis=1, return_inverse=True)
    threads = [_Thread(*column) for column in found.T.tolist()]
    order = sorted(range(len(threads)), key=lambda i: _shown(timeline, threads[i]))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order)) + 1
    return place[tid.reshape(-1)], [threads[i] for i in order]


def _shown(timeline: Timeline, thread: _Thread) -> tuple[object, int, int]:
    return queue_order(timeline.queues[thread.queue]), thread.lane, thread.flight


def _flights(timeline: Timeline, start: Ints, end: Ints) -> Ints:
    """Assign concurrent spans of one queue to separate rows.

    A nic queue has several sends in flight; elsewhere the spans of a row follow each other or are
    nested.
    """
    flight = np.zeros(timeline.num_spans, np.int64)
    keys = (timeline.parent, timeline.lane, timeline.queue, timeline.rank)
    order = np.lexsort((start, *keys))
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        same &= key[order[1:]] == key[order[:-1]]
    late = same & (start[order[1:]] < end[order[:-1]])
    if not late.any():
        return flight
    line = np.concatenate([[0], np.cumsum(~same)])
    for crowded in np.unique(line[1:][late]).tolist():
        rows = order[line == crowded]
        flight[rows] = assign_rows(start[rows].tolist(), end[rows].tolist())
    return flight


def _metadata(layout: _Layout) -> Iterator[str]:
    timeline = layout.timeline
    used = np.unique(layout.pid * (len(layout.threads) + 1) + layout.tid)
    for rank, stands_for in zip(timeline.ranks, timeline.represents, strict=True):
        others = f" (stands for {stands_for})" if stands_for > 1 else ""
        pid = layout.first_pid + int(rank)
        yield meta("process_name", pid, 0, name=f"{layout.prefix}rank {rank}{others}")
        yield meta("process_sort_index", pid, 0, sort_index=pid)
    for key in used.tolist():
        pid, tid = divmod(key, len(layout.threads) + 1)
        thread = layout.threads[tid - 1]
        name = timeline.queues[thread.queue]
        name += f" lane {thread.lane}" if thread.lane >= 0 else ""
        name += f" ({thread.flight + 1})" if thread.flight else ""
        yield meta("thread_name", pid, tid, name=name)
        yield meta("thread_sort_index", pid, tid, sort_index=tid)


def meta(what: str, pid: int, tid: int, **args: Any) -> str:
    """Return a metadata event: the name or position of a process or thread."""
    return json_text({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


def _spans(layout: _Layout) -> list[str]:
    timeline = layout.timeline
    names = [json_text(name) for name in timeline.names]
    kinds = [activity.name.lower() for activity in Activity]
    heads = [[f'"name":{name},"cat":"{kind}"' for kind in kinds] for name in names]
    joules = timeline.joules.tolist()
    columns = zip(
        timeline.name.tolist(),
        timeline.activity.tolist(),
        layout.pid.tolist(),
        layout.tid.tolist(),
        (layout.start / 1000).tolist(),
        ((layout.end - layout.start) / 1000).tolist(),
        timeline.id.tolist(),
        timeline.nbytes.tolist(),
        [f',"joules":{value:.6g}' if value else "" for value in joules],
        strict=True,
    )
    return [
        f'{{"ph":"X",{heads[name][activity]},"pid":{pid},"tid":{tid},"ts":{ts_us:.3f},'
        f'"dur":{dur_us:.3f},"args":{{"id":{ident},"bytes":{nbytes}{energy}}}}}'
        for name, activity, pid, tid, ts_us, dur_us, ident, nbytes, energy in columns
    ]


def _arrows(layout: _Layout) -> Iterator[str]:
    """Yield an arrow from the Signal that released a Wait to the end of that Wait."""
    released = layout.timeline.released_by
    waits = np.flatnonzero(released >= 0)
    signals = released[waits]
    inside = np.maximum(layout.end[waits] - 1, layout.start[waits])
    ends = (
        ('"s"', "", signals, layout.start[signals]),
        ('"f"', ',"bp":"e"', waits, np.maximum(inside, layout.start[signals])),
    )
    for phase, binding, rows, when in ends:
        columns = zip(
            layout.pid[rows].tolist(),
            layout.tid[rows].tolist(),
            (when / 1000).tolist(),
            waits.tolist(),
            strict=True,
        )
        for pid, tid, ts_us, wait in columns:
            yield (
                f'{{"ph":{phase}{binding},"name":"signal","cat":"flag","id":"{layout.number}.{wait}",'
                f'"pid":{pid},"tid":{tid},"ts":{ts_us:.3f}}}'
            )


def nanoseconds(seconds: NDArray[np.float64]) -> Ints:
    """Round times to nanoseconds; lengths are differences of rounded times."""
    return np.rint(seconds * 1e9).astype(np.int64)


def json_text(value: Any) -> str:
    """Return a value as JSON."""
    return msgspec.json.encode(value).decode()
