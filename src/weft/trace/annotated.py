"""An analysis as a Perfetto trace: the recorded events, with weft's findings above them.

A rank is a process. Its first threads are weft's: steps, the critical path, what collectives did
(waiting, then moving), exposed communication, idle time. Below are the streams of the GPU and the
threads of the host, all ranks on one clock.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from weft.timeline.intervals import IntervalSet
from weft.trace.analysis.analysis_result import Analysis, CollectiveUse, RankAnalysis
from weft.trace.perfetto import json_text, meta, nanoseconds, write_trace
from weft.trace.trace import EventKind, Ints, Trace
from weft.trace.trace_collectives import communication

_CATEGORIES = {
    EventKind.KERNEL: "kernel",
    EventKind.COPY: "gpu_memcpy",
    EventKind.SET: "gpu_memset",
    EventKind.RUNTIME: "cuda_runtime",
    EventKind.OP: "cpu_op",
    EventKind.ANNOTATION: "user_annotation",
    EventKind.PYTHON: "python_function",
}
_OURS = ("steps", "critical path", "collectives", "exposed communication", "idle")


class _Event(NamedTuple):
    """A span of weft's own, in seconds."""

    name: str
    start: float
    end: float
    args: dict[str, Any]


def write_annotated(path: Path | str, analysis: Analysis) -> None:
    """Write the annotated timeline to a ``.json`` or ``.json.gz`` file."""
    write_trace(path, annotated_json(analysis))


def annotated_json(analysis: Analysis) -> bytes:
    """Return the annotated timeline as JSON text."""
    starts = [float(rank.trace.columns.start.min(initial=0.0)) for rank in analysis.ranks]
    starts += [step.start for rank in analysis.ranks for step in rank.steps]
    zero = min(starts, default=0.0)
    parts: list[str] = []
    for pid, rank in enumerate(analysis.ranks):
        parts += _process(rank, pid)
        for tid, events in enumerate(_annotations(rank), start=1):
            parts += [meta("thread_name", pid, tid, name=f"weft: {_OURS[tid - 1]}")]
            parts += [meta("thread_sort_index", pid, tid, sort_index=tid)]
            parts += _written(events, pid, tid, zero)
        parts += _recorded(rank.trace, pid, zero)
    about = {
        "ranks": [rank.rank for rank in analysis.ranks],
        "advice": [f"{each.title}: {each.why}" for each in analysis.advice],
    }
    tail = f'],"displayTimeUnit":"ns","otherData":{json_text({"weft": about})}}}\n'
    return ('{"traceEvents":[\n' + ",\n".join(parts) + tail).encode("utf-8", "replace")


def _process(rank: RankAnalysis, pid: int) -> Iterator[str]:
    name = Path(rank.file).name
    title = name if rank.rank is None else f"rank {rank.rank} ({name})"
    yield meta("process_name", pid, 0, name=title)
    yield meta("process_sort_index", pid, 0, sort_index=pid)


def _annotations(rank: RankAnalysis) -> Iterator[Iterable[_Event]]:
    """Yield the events of each of weft's threads, in the order of their names above.

    Of many ranks only collectives are kept: what is exposed and idle is known in sum alone.
    """
    trace = rank.trace
    marked = () if rank.steps_found else rank.steps
    yield (_Event(step.name, step.start, step.start + step.wall, {}) for step in marked)
    yield _path(rank)
    yield (event for use in rank.collectives for event in _use(use))
    if not trace.is_whole:
        return
    start, end = trace.columns.start[trace.gpu], trace.end[trace.gpu]
    is_comm = communication(trace)
    other = IntervalSet.of(start[~is_comm], end[~is_comm])
    yield _cover("exposed", IntervalSet.of(start[is_comm], end[is_comm]) - other)
    busy = IntervalSet.of(start, end)
    window = IntervalSet.of([start.min(initial=np.inf)], [end.max(initial=-np.inf)])
    yield _cover("idle", window - busy)


def _path(rank: RankAnalysis) -> Iterator[_Event]:
    """Yield the events of the path, each clipped where the next begins."""
    rows = rank.path.rows if rank.path else ()
    trace = rank.trace
    starts = [float(trace.columns.start[row]) for row in rows]
    for row, start, until in zip(rows, starts, [*starts, np.inf][1:], strict=True):
        end = min(float(trace.end[row]), max(until, start))
        yield _Event(
            trace.name_of(row), start, end, {"seconds": float(trace.columns.duration[row])}
        )


def _use(use: CollectiveUse) -> Iterator[_Event]:
    """Yield a collective as one span around its waiting and its moving."""
    args = {
        "bytes": use.nbytes,
        "dtype": use.dtype,
        "ranks": use.num_ranks,
        "exposed_us": use.exposed * 1e6,
        "busbw_GBps": None if use.busbw is None else use.busbw / 1e9,
        "link_GBps": None if use.link is None else use.link / 1e9,
        "basis": use.basis,
        "last_rank": use.last_rank,
    }
    end = use.start + use.seconds
    yield _Event(use.kind, use.start, end, {k: v for k, v in args.items() if v is not None})
    if use.waiting is not None and use.moving is not None:
        moves = max(end - use.moving, use.start)
        yield _Event("waiting for other ranks", use.start, moves, {})
        yield _Event("moving bytes", moves, end, {})


def _cover(name: str, cover: IntervalSet) -> Iterator[_Event]:
    for start, end in zip(cover.start.tolist(), cover.end.tolist(), strict=True):
        yield _Event(name, start, end, {})


def _written(events: Iterable[_Event], pid: int, tid: int, zero: float) -> Iterator[str]:
    for event in events:
        start, end = (round((time - zero) * 1e9) for time in (event.start, event.end))
        yield json_text(
            {
                "ph": "X",
                "cat": "weft",
                "name": event.name,
                "pid": pid,
                "tid": tid,
                "ts": start / 1000,
                "dur": max(end - start, 0) / 1000,
                "args": event.args,
            }
        )


def _recorded(trace: Trace, pid: int, zero: float) -> Iterator[str]:
    """Yield the recorded events: streams first, then threads, and arrows from launches."""
    columns = trace.columns
    rows = np.flatnonzero(np.isin(columns.kind, [int(kind) for kind in _CATEGORIES]))
    is_gpu = columns.kind[rows] <= EventKind.SET
    lines, place = np.unique(
        np.stack([~is_gpu, np.where(is_gpu, columns.stream[rows], columns.thread[rows])]),
        axis=1,
        return_inverse=True,
    )
    first = len(_OURS) + 1
    for number, (is_host, line) in enumerate(lines.T.tolist()):
        name = f"thread {trace.threads[line][1]}" if is_host else f"stream {line}"
        yield meta("thread_name", pid, first + number, name=name)
        yield meta("thread_sort_index", pid, first + number, sort_index=first + number)
    tid = np.zeros(len(trace), np.int64)
    tid[rows] = place.reshape(-1) + first
    start = nanoseconds(columns.start - zero)
    end = np.maximum(nanoseconds(trace.end - zero), start)
    yield from _spans(trace, rows, pid, tid, start, end)
    if not trace.is_whole:
        return
    # Arrows from runtime calls to what they launched.
    launch: Sequence[int] = trace.launch[trace.gpu].tolist()
    for row, call in zip(trace.gpu.tolist(), launch, strict=True):
        if call < 0 or not tid[call]:
            continue
        for phase, where in (('"s"', call), ('"f","bp":"e"', row)):
            yield (
                f'{{"ph":{phase},"name":"launch","cat":"launch","id":"{pid}.{row}","pid":{pid},'
                f'"tid":{int(tid[where])},"ts":{start[where] / 1000:.3f}}}'
            )


def _spans(trace: Trace, rows: Ints, pid: int, tid: Ints, start: Ints, end: Ints) -> Iterator[str]:
    # UTF-8 cannot encode unpaired surrogates.
    names = [json_text(name.encode("utf-8", "replace").decode()) for name in trace.names]
    categories = {int(kind): name for kind, name in _CATEGORIES.items()}
    columns = zip(
        trace.columns.name[rows].tolist(),
        trace.columns.kind[rows].tolist(),
        tid[rows].tolist(),
        (start[rows] / 1000).tolist(),
        ((end - start)[rows] / 1000).tolist(),
        strict=True,
    )
    for name, kind, line, ts_us, dur_us in columns:
        yield (
            f'{{"ph":"X","cat":"{categories[kind]}","name":{names[name]},"pid":{pid},'
            f'"tid":{line},"ts":{ts_us:.3f},"dur":{dur_us:.3f}}}'
        )
