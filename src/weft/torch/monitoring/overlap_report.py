"""``weft.torch.overlap_report``: the overlap of a profile in the log, without a trace file.

::

    rank r:  profile ─▶ Trace ─▶ RankDigest ─▶ starts and ends of its collectives, a few KB ─▶ store
    rank 0:  all of these ─▶ aligned ─▶ when the bytes of each collective moved ─▶ store
    rank r:  what it exposed, waited and moved, a few numbers ─▶ store
    rank 0:  three lines in the log, and the HTML report

The profile passes through a file in memory (``/dev/shm``), because PyTorch's profiler gives its
events to files only; it is removed at once. Ranks exchange through the job's store, with a
deadline: a rank that does not answer is left out. Nothing that fails here reaches the job.
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch.distributed as dist

from weft.errors import UsageError
from weft.trace.analysis.align import AlignedJob, RankTrace, align
from weft.trace.analysis.analysis_result import Analysis, RankAnalysis, Straggler
from weft.trace.analysis.analyzing import JobAnalysis, analyze_digests, bounds
from weft.trace.analysis.rank_digest import RankDigest, digest_of
from weft.trace.analysis.trace_advice import first_of, late_rank
from weft.trace.analysis.waiting import TransferWindow, measured, stragglers
from weft.trace.formats.kineto import read_kineto
from weft.trace.trace import Floats, Trace, TraceColumns
from weft.trace.trace_collectives import TracedCollective, with_host_collectives
from weft.units import format_time

_PREFIX = "weft-overlap"
_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made in it
_log = logging.getLogger("weft.overlap")
_count = 0  # handlers of this process: their keys in the store differ


def overlap_report(
    every: int = 1,
    *,
    html: str | Path | None = None,
    trace: str | Path | None = None,
    log: Callable[[str], None] = print,
    timeout: float = 60.0,
) -> "OverlapReport":
    """Return an ``on_trace_ready`` handler of ``torch.profiler.profile``.

    Of the profiles that are at least ``every`` steps apart, rank 0 passes three lines to ``log``:
    step, exposed communication, slowest rank. ``html`` is the report that rank 0 writes, ``trace``
    a path with ``{rank}`` at which each rank keeps its profile (a handler can save it only once).
    A rank that does not answer within ``timeout`` seconds is left out.
    """
    if every < 1:
        raise UsageError(f"every: must be >= 1 steps (got {every})")
    return OverlapReport(every, html, trace, log, timeout)


class RankStampsMessage(msgspec.Struct, frozen=True):
    """What rank 0 needs of the others: their collectives, and the busy time before each."""

    rank: int
    origin_ns: int
    device: str
    collectives: list[tuple[str, int | None, str, int | None, list[int], int | None]]
    start: list[float]
    end: list[float]
    busy_start: list[float]  # busy seconds of the rank until each collective started
    busy_end: list[float]


class RankSummary(msgspec.Struct, frozen=True):
    """What one rank reports of its profile; seconds of the mean step."""

    rank: int
    step: float
    compute: float
    communication: float
    exposed: float
    waiting: float | None
    moving: float | None
    idle: float
    note: str = ""


class OverlapReport:
    """The handler; ``last`` has the summaries of the last profile, on rank 0."""

    def __init__(
        self,
        every: int,
        html: str | Path | None,
        trace: str | Path | None,
        log: Callable[[str], None],
        timeout: float,
    ) -> None:
        global _count  # noqa: PLW0603 - every rank counts alike
        _count += 1
        self._prefix = f"{_PREFIX}/{_count}"
        self._every, self._html, self._trace, self._log = every, html, trace, log
        self._timeout = timeout
        self._next, self._profiles = 0, 0
        self.last: tuple[RankSummary, ...] = ()
        self.seconds = 0.0  # that the last report took on this rank

    def __call__(self, prof: Any) -> None:
        """Report on a profile; called by the profiler."""
        number = int(getattr(prof, "step_num", 0))
        if number < self._next:
            return
        self._next = number + self._every
        self._profiles += 1
        began = time.perf_counter()
        try:
            self._report(prof)
        except Exception as error:  # noqa: BLE001 - the job goes on, whatever happens here
            _log.warning("no overlap report: %s: %s", type(error).__name__, error)
            with suppress(Exception):
                self._withdraw()
        self.seconds = time.perf_counter() - began

    def _withdraw(self) -> None:
        """Write empty messages, so that the other ranks do not wait for this one."""
        if not (dist.is_available() and dist.is_initialized()):
            return
        rank = dist.get_rank()
        store = _Exchange(f"{self._prefix}/{self._profiles}", self._timeout)
        ranks = range(dist.get_world_size()) if rank == 0 else ()
        for key in (f"stamps/{rank}", f"summary/{rank}", *(f"windows/{r}" for r in ranks)):
            store.put(key, b"")

    def _report(self, prof: Any) -> None:
        together = dist.is_available() and dist.is_initialized()
        rank, size = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
        found = with_host_collectives(replace(self._read(prof, rank), rank=rank))
        digest = digest_of(found)
        store = _Exchange(f"{self._prefix}/{self._profiles}", self._timeout) if size > 1 else None
        windows: list[TransferWindow | None] | None = None
        late: Sequence[Straggler] = ()
        if store is not None:
            store.put(f"stamps/{rank}", _message(digest, rank))
            if rank == 0:
                late = self._align(store, size)
            windows = _own_windows(store.get(f"windows/{rank}"), digest)
        job = AlignedJob((digest.ranked,), (), ())
        part = analyze_digests(job, [digest], [windows or [None] * len(digest.places)])
        mine = part.ranks[0]
        summary = _summary(mine, rank)
        if store is not None and rank:
            store.put(f"summary/{rank}", msgspec.msgpack.encode(summary))
            return
        others = [store.get(f"summary/{r}") for r in range(1, size)] if store is not None else []
        known = [msgspec.msgpack.decode(raw, type=RankSummary) for raw in others if raw]
        self.last = (summary, *known)
        for line in _lines(self.last, late, size):
            self._log(line)
        if self._html is not None:
            shown = replace(mine, trace=found)
            self._write_html(JobAnalysis(job, (shown,), tuple(late)), size)

    def _read(self, prof: Any, rank: int) -> Trace:
        """Read the profile through a file in memory."""
        folder = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
        with tempfile.TemporaryDirectory(prefix="weft-overlap-", dir=folder) as where:
            path = Path(where) / f"rank{rank}.json"
            prof.export_chrome_trace(str(path))
            if self._trace is not None:
                kept = Path(str(self._trace).format(rank=rank))
                kept.write_bytes(path.read_bytes())
            return read_kineto(path)

    def _align(self, store: "_Exchange", size: int) -> Sequence[Straggler]:
        """Align the stamps of all ranks, publish when bytes moved, return the late ranks."""
        found = [store.get(f"stamps/{r}") for r in range(size)]
        messages = [msgspec.msgpack.decode(raw, type=RankStampsMessage) for raw in found if raw]
        job = align([_ranked(message) for message in messages])
        windows: list[list[TransferWindow | None]] = [[None] * len(m.start) for m in messages]
        for match in job.matches:
            moved = measured(job, match)
            for number, index in match.members:
                windows[number][index] = moved
        for message, mine, shift in zip(messages, windows, job.shifts, strict=True):
            times = [
                None
                if each is None
                else tuple((t - shift.at_zero) / (1 + shift.drift) for t in (each.start, each.end))
                for each in mine
            ]
            store.put(f"windows/{message.rank}", msgspec.msgpack.encode(times))
        if len(messages) < 2:
            return ()
        curves = [
            _BusyCurve(message, shift) for message, shift in zip(messages, job.shifts, strict=True)
        ]
        return stragglers(job, curves)

    def _write_html(self, part: JobAnalysis, size: int) -> None:
        from weft.report.analysis_page import page

        advice = first_of(bounds(part))
        if part.stragglers:  # rank 0 alone would advise to record all ranks, which was done
            title, why = late_rank(part.stragglers, part.stragglers[0].rank)
            advice = tuple(
                replace(each, title=title, why=why) if each.change == "no-waiting" else each
                for each in advice
            )
        analysis = Analysis(
            ranks=part.ranks,
            world_size=size,
            aligned_within=None,
            stragglers=part.stragglers,
            advice=advice,
            notes=("written inside the job: the timeline is that of rank 0",),
        )
        Path(str(self._html)).write_text(page(analysis), encoding="utf-8")


class _Exchange:
    """Messages of one profile in the job's store, with a deadline."""

    def __init__(self, prefix: str, timeout: float) -> None:
        store: Any = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - no other door
        self._store, self._prefix = store.clone(), prefix
        self._until = time.monotonic() + timeout

    def put(self, key: str, message: bytes) -> None:
        self._store.set(f"{self._prefix}/{key}", message)

    def get(self, key: str) -> bytes | None:
        """Return a message once it has come; None after the deadline."""
        name = f"{self._prefix}/{key}"
        left = max(self._until - time.monotonic(), 0.001)
        with suppress(dist.DistError, RuntimeError):
            self._store.wait([name], timedelta(seconds=left))
            return bytes(self._store.get(name))
        return None


def _message(digest: RankDigest, rank: int) -> bytes:
    ranked, events = digest.ranked, digest.events
    start, end = events.start[digest.places], events.end[digest.places]
    return msgspec.msgpack.encode(
        RankStampsMessage(
            rank,
            ranked.trace.origin_ns,
            ranked.trace.device,
            [
                (c.kind, c.nbytes, c.group, c.num_ranks, list(c.ranks), c.sequence)
                for c in ranked.collectives
            ],
            start.tolist(),
            end.tolist(),
            events.busy.before(start).tolist(),
            events.busy.before(end).tolist(),
        )
    )


def _ranked(message: RankStampsMessage) -> RankTrace:
    """Build the RankTrace of another rank from its stamps."""
    count = len(message.start)
    unset, start = np.full(count, -1, np.int64), np.array(message.start, float)
    small = unset.astype(np.int32)
    columns = TraceColumns(
        kind=np.zeros(count, np.int8),
        name=np.zeros(count, np.int32),
        start=start,
        duration=np.array(message.end, float) - start,
        thread=small,
        stream=small,
        device=small,
        correlation=unset,
        external=unset,
        nbytes=unset,
        sequence=unset,
        function=unset,
        detail=small,
    )
    trace = Trace(
        path=f"rank {message.rank}",
        columns=columns,
        names=("collective",),
        threads=(),
        origin_ns=message.origin_ns,
        rank=message.rank,
        device=message.device,
    )
    found = tuple(
        TracedCollective(
            row, kind, nbytes, group=group, num_ranks=size, ranks=tuple(ranks), sequence=number
        )
        for row, (kind, nbytes, group, size, ranks, number) in enumerate(message.collectives)
    )
    return RankTrace(trace, found)


class _BusyCurve:
    """The busy time of a rank, known where its collectives start and end."""

    def __init__(self, message: RankStampsMessage, shift: Any) -> None:
        times = np.array([*message.start, *message.end], float) * (1 + shift.drift) + shift.at_zero
        busy = np.array([*message.busy_start, *message.busy_end], float)
        order = np.argsort(times, kind="stable")
        self._times, self._busy = times[order], busy[order]

    def within(self, start: Floats, end: Floats) -> Floats:
        """Return the busy seconds inside each interval."""
        out: Floats = np.interp(end, self._times, self._busy) - np.interp(
            start, self._times, self._busy
        )
        return out


def _own_windows(raw: bytes | None, digest: RankDigest) -> list[TransferWindow | None] | None:
    if not raw:
        return None
    times: list[tuple[float, float] | None] = msgspec.msgpack.decode(raw)
    if len(times) != len(digest.places):
        return None
    return [None if each is None else TransferWindow(*each, "measured") for each in times]


def _summary(rank: RankAnalysis, number: int) -> RankSummary:
    split = rank.mean_step
    return RankSummary(
        number,
        rank.seconds,
        split.compute,
        split.communication,
        split.exposed,
        split.exposed_waiting,
        split.exposed_moving,
        rank.mean_idle,
        rank.notes[0] if rank.notes and not rank.total.num_gpu_events else "",
    )


def _lines(ranks: Sequence[RankSummary], late: Sequence[Straggler], size: int) -> list[str]:
    """Return the three lines of a report: step, exposed communication, slowest rank."""
    worst = max(ranks, key=lambda rank: rank.step)
    if worst.note:
        return [f"weft: {worst.note}"]
    of = f"{len(ranks)} of {size} ranks" if size > 1 else "1 rank"
    mean = sum(rank.exposed for rank in ranks) / len(ranks)
    hidden = sum(rank.communication - rank.exposed for rank in ranks) / len(ranks)
    known = [rank for rank in ranks if rank.waiting is not None and rank.moving is not None]
    split = ""
    if known:
        waits = sum(rank.waiting or 0.0 for rank in known) / len(known)
        moves = sum(rank.moving or 0.0 for rank in known) / len(known)
        split = f": {format_time(waits)} waiting for other ranks, {format_time(moves)} moving bytes"
    lines = [
        (
            f"weft: step {format_time(worst.step)} ({of}): computing {format_time(worst.compute)}, "
            f"idle {format_time(worst.idle)} on rank {worst.rank}, the slowest"
        ),
        (
            f"weft: exposed communication {format_time(mean)} a step "
            f"({100 * mean / worst.step:.1f} %){split}; {format_time(hidden)} is overlapped"
        ),
    ]
    if late:
        first = late[0]
        lines.append(
            f"weft: slowest rank {first.rank}: last in {first.num_last} of {first.num_collectives} "
            f"collectives, cost the others {format_time(first.cost)}; {first.why}"
        )
    else:
        lines.append("weft: no rank was late" if size > 1 else "weft: one rank, nobody to wait for")
    return lines
