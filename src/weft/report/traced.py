"""The timeline of analyzed traces: GPU streams of every rank, and their host threads."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft.report.picture import KINDS, Mark, Picture, PictureLine
from weft.trace.analysis.analysis_result import CollectiveUse, RankAnalysis
from weft.trace.trace import EventKind, Trace
from weft.trace.trace_collectives import communication
from weft.units import format_rate, format_size

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

_KIND_OF = {
    EventKind.KERNEL: "computation",
    EventKind.COPY: "copy",
    EventKind.SET: "copy",
    EventKind.RUNTIME: "control",
    EventKind.OP: "host",
    EventKind.ANNOTATION: "host",
    EventKind.PYTHON: "host",
    EventKind.SYNC: "waiting",
}


def rank_name(rank: RankAnalysis) -> str:
    """Return the display name of a rank's trace."""
    return f"rank {rank.rank}" if rank.rank is not None else Path(rank.file).name


def picture_of_ranks(ranks: Sequence[RankAnalysis]) -> Picture:
    """Return the picture of what ran on every rank."""
    parts = [_Part(rank) for rank in ranks]
    names, numbers = _names([part.trace for part in parts])
    lines = [line for part in parts for line in part.lines]
    first_line = np.cumsum([0, *(len(part.lines) for part in parts)])[:-1].tolist()
    columns = {
        "line": [part.line + first for part, first in zip(parts, first_line, strict=True)],
        "name": [of[part.name] for part, of in zip(parts, numbers, strict=True)],
        "kind": [part.kind for part in parts],
        "start": [part.start for part in parts],
        "end": [part.end for part in parts],
        "waits": [part.waits for part in parts],
    }
    whole = {key: np.concatenate(each) if each else np.zeros(0) for key, each in columns.items()}
    first = np.cumsum([0, *(len(part.line) for part in parts)])[:-1].tolist()
    numbered = list(zip(parts, first, strict=True))
    return Picture(
        lines=lines,
        names=names,
        line=whole["line"].astype(np.int64),
        name=whole["name"].astype(np.int64),
        kind=whole["kind"].astype(np.int64),
        start=whole["start"],
        end=whole["end"],
        waits=whole["waits"],
        nbytes=np.zeros(len(whole["line"]), np.int64),
        paths=[[i + at for i in part.path] for part, at in numbered if part.path],
        marks=[mark for part in parts for mark in part.marks],
        details={i + at: text for part, at in numbered for i, text in part.details.items()},
    )


class _Part:
    """The contribution of one rank: spans as columns, with local numbers of lines and names."""

    def __init__(self, rank: RankAnalysis) -> None:
        self.trace = trace = rank.trace
        columns = trace.columns
        kinds = np.full(max(EventKind) + 1, -1, np.int64)
        for each, name in _KIND_OF.items():
            kinds[each] = KINDS.index(name)
        kind = kinds[columns.kind]
        kind[trace.gpu[communication(trace)]] = KINDS.index("communication")
        rows = np.flatnonzero((kind >= 0) & (columns.duration > 0))
        is_gpu = (columns.kind <= EventKind.SET) | (columns.kind == EventKind.SYNC) & (
            columns.stream >= 0
        )
        self.lines, self.line = _lines(trace, rows, is_gpu[rows], rank_name(rank))
        self.name = columns.name[rows]
        self.kind = kind[rows]
        self.start, self.end = columns.start[rows], trace.end[rows]
        self.waits, self.details = _notes(rank, rows)
        self.path = np.flatnonzero(np.isin(rows, rank.path.rows if rank.path else ())).tolist()
        marked = () if rank.steps_found else rank.steps
        self.marks = [Mark(s.name, s.start, s.start + s.wall, rank_name(rank)) for s in marked]


def _lines(trace: Trace, rows: Ints, is_gpu: Bools, group: str) -> tuple[list[PictureLine], Ints]:
    """Return streams first, then threads, in the order of their ids."""
    columns = trace.columns
    inner = np.where(is_gpu, columns.stream[rows], columns.thread[rows])
    outer = np.where(is_gpu, columns.device[rows], -1)
    keys, line = np.unique(np.stack([~is_gpu, outer, inner]), axis=1, return_inverse=True)
    several = len(np.unique(outer[is_gpu])) > 1
    lines = []
    for is_host, device, number in keys.T.tolist():
        if is_host:
            lines.append(PictureLine(group, _thread(trace, number), quiet=True))
        else:
            of = f"GPU {device} " if several else ""
            lines.append(PictureLine(group, f"{of}stream {number}"))
    return lines, line.reshape(-1)


def _thread(trace: Trace, number: int) -> str:
    return f"thread {trace.threads[number][1]}" if 0 <= number < len(trace.threads) else "thread"


def _notes(rank: RankAnalysis, rows: Ints) -> tuple[NDArray[np.float64], dict[int, str]]:
    """Return the waiting seconds of collectives, and a text about what they moved."""
    waits, details = np.zeros(len(rows)), dict[int, str]()
    columns = rank.trace.columns
    of_start: dict[tuple[float, str], list[int]] = {}
    collective_rows = rank.trace.gpu[communication(rank.trace)]
    for place in np.flatnonzero(np.isin(rows, collective_rows)).tolist():
        key = float(columns.start[rows[place]]), rank.trace.name_of(rows[place])
        of_start.setdefault(key, []).append(place)
    for use in rank.collectives:
        for place in of_start.get((use.start, use.name), ()):
            waits[place] = min(use.waiting or 0.0, use.seconds)
            details[place] = _hover_text(use)
    return waits, details


def _hover_text(use: CollectiveUse) -> str:
    words = [use_name(use)]
    words += [f"among {use.num_ranks} ranks"] if use.num_ranks else []
    words += [f"at {format_rate(use.busbw)} of bus bandwidth"] if use.busbw else []
    words += [f"({use.basis})"] if use.busbw else []
    words += [f"the last to come was rank {use.last_rank}"] if use.last_rank is not None else []
    return ", ".join(words).replace(", (", " (")


def use_name(use: CollectiveUse) -> str:
    """Return the display name of a collective: kind, size and dtype."""
    size = f" {format_size(use.nbytes)}" if use.nbytes else ""
    return f"{use.kind}{size}" + (f" {use.dtype}" if use.dtype else "")


def _names(traces: Sequence[Trace]) -> tuple[list[str], list[Ints]]:
    """Return all names, and the global number of each rank's names."""
    numbers: dict[str, int] = {}
    of = [
        np.asarray([numbers.setdefault(name, len(numbers)) for name in trace.names], np.int64)
        for trace in traces
    ]
    return list(numbers), of
