"""The data of an interactive timeline: spans on rows, encoded for the page's script.

Spans of a row never overlap: nested or concurrent spans get separate rows. Times are integer
nanoseconds after the first start.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.report.packing import pack
from weft.schedule import queue_kind
from weft.timeline import Activity, Timeline, queue_order
from weft.timeline.intervals import assign_rows
from weft.timeline.kernel_names import short_name
from weft.trace.perfetto import nanoseconds

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

KINDS = ("computation", "communication", "waiting", "copy", "control", "host")
"""What a span is; the style and the script of a page number them in this order."""

MOST_SPANS = 120_000  # such a page takes about 1.5 MB and is drawn without delay

_OF_ACTIVITY = {
    Activity.CONTROL: "control",
    Activity.COMPUTATION: "computation",
    Activity.COMMUNICATION: "communication",
    Activity.WAITING: "waiting",
}


@dataclass(frozen=True, slots=True)
class PictureLine:
    """A queue, a stream or a thread; ``quiet`` ones are shown on request."""

    group: str
    title: str
    quiet: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A named interval, such as a step; of one group or of all."""

    title: str
    start: float
    end: float
    group: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    """Spans as columns: line, name, kind, start and end.

    ``waits`` are the seconds at the start of a span spent waiting for others, ``paths`` the spans
    of critical paths in order of time (one per rank that has its own), ``details`` more text of a
    span, ``left_out`` the number of spans that were too short to be kept.
    """

    lines: Sequence[PictureLine]
    names: Sequence[str]
    line: Ints
    name: Ints
    kind: Ints
    start: Floats
    end: Floats
    waits: Floats
    nbytes: Ints
    paths: Sequence[Sequence[int]] = ()
    marks: Sequence[Mark] = ()
    details: dict[int, str] = field(default_factory=dict)
    left_out: int = 0

    @property
    def num_spans(self) -> int:
        """The number of spans."""
        return len(self.start)


def picture_of(timeline: Timeline) -> Picture:
    """Return the picture of a Timeline: one line per queue and per lane of a Launch."""
    takes = timeline.end > timeline.start
    columns = (timeline.rank[takes], timeline.queue[takes], timeline.lane[takes])
    keys, line = np.unique(np.stack(columns).astype(np.int64), axis=1, return_inverse=True)
    found = [tuple(key) for key in keys.T.tolist()]
    order = sorted(range(len(found)), key=lambda i: _shown(timeline, found[i]))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    number = np.cumsum(takes) - 1
    kinds = np.asarray([KINDS.index(_OF_ACTIVITY[each]) for each in Activity], np.int64)
    return Picture(
        lines=[_line(timeline, found[i]) for i in order],
        names=timeline.names,
        line=place[line.reshape(-1)],
        name=timeline.name[takes].astype(np.int64),
        kind=kinds[timeline.activity[takes]],
        start=timeline.start[takes],
        end=timeline.end[takes],
        waits=np.zeros(int(takes.sum())),
        nbytes=timeline.nbytes[takes],
        paths=[[int(number[span]) for span in timeline.critical_path() if takes[span]]],
    )


def _shown(timeline: Timeline, key: tuple[int, ...]) -> tuple[object, ...]:
    rank, queue, lane = key
    return rank, queue_order(timeline.queues[queue]), lane


def _line(timeline: Timeline, key: tuple[int, ...]) -> PictureLine:
    rank, queue, lane = key
    name = timeline.queues[queue] + (f" lane {lane}" if lane >= 0 else "")
    return PictureLine(f"rank {rank}", name, quiet=queue_kind(timeline.queues[queue]) == "host")


def stacked(pictures: Mapping[str, Picture]) -> Picture:
    """Return pictures above each other on one axis, from time zero; titles name their groups."""
    several = any(len({line.group for line in each.lines}) > 1 for each in pictures.values())
    made = list(pictures.values())
    lines = [
        replace(line, group=f"{title}, {line.group}" if several else title)
        for title, each in pictures.items()
        for line in each.lines
    ]
    spans = dict(zip(_offsets(each.num_spans for each in made), made, strict=True))
    names = _offsets(len(each.names) for each in made)
    first = _offsets(len(each.lines) for each in made)
    zeros = [float(each.start.min(initial=np.inf)) if each.num_spans else 0.0 for each in made]
    return Picture(
        lines=lines,
        names=[name for each in made for name in each.names],
        line=np.concatenate([each.line + at for each, at in zip(made, first, strict=True)]),
        name=np.concatenate([each.name + at for each, at in zip(made, names, strict=True)]),
        start=np.concatenate([each.start - zero for each, zero in zip(made, zeros, strict=True)]),
        end=np.concatenate([each.end - zero for each, zero in zip(made, zeros, strict=True)]),
        paths=[[i + at for i in path] for at, each in spans.items() for path in each.paths],
        details={i + at: text for at, each in spans.items() for i, text in each.details.items()},
        left_out=sum(each.left_out for each in made),
        kind=np.concatenate([each.kind for each in made]),
        waits=np.concatenate([each.waits for each in made]),
        nbytes=np.concatenate([each.nbytes for each in made]),
    )


def _offsets(counts: Iterable[int]) -> list[int]:
    return [0, *accumulate(counts)][:-1]


def lightened(picture: Picture, most: int) -> Picture:
    """Drop the shortest spans, of quiet lines first, if there are too many to show."""
    if picture.num_spans <= most:
        return picture
    quiet = np.asarray([line.quiet for line in picture.lines], bool)[picture.line]
    quiet[[span for path in picture.paths for span in path]] = False
    order = np.lexsort((picture.start - picture.end, quiet))
    kept = np.zeros(picture.num_spans, bool)
    kept[order[:most]] = True
    place = np.cumsum(kept) - 1
    columns = ("line", "name", "kind", "start", "end", "waits", "nbytes")
    return replace(
        picture,
        **{name: getattr(picture, name)[kept] for name in columns},
        paths=[[int(place[i]) for i in path if kept[i]] for path in picture.paths],
        details={int(place[i]): text for i, text in picture.details.items() if kept[i]},
        left_out=picture.left_out + picture.num_spans - most,
    )


def rows_of(line: Ints, start: Floats | Ints, end: Floats | Ints) -> Ints:
    """Return a row per span such that spans of a row never overlap; outer spans come first."""
    row = np.zeros(len(line), np.int64)
    order = np.lexsort((-end, start, line))
    same = line[order[1:]] == line[order[:-1]]
    late = same & (start[order[1:]] < end[order[:-1]])
    for crowded in np.unique(line[order[1:]][late]).tolist():
        spans = order[line[order] == crowded]
        row[spans] = assign_rows(start[spans].tolist(), end[spans].tolist())
    return row


def packed(picture: Picture) -> dict[str, Any]:
    """Encode a picture as columns of text, in the order in which the page's script reads them.

    Rows are in display order, spans of a row in order of time; a start is the distance from the
    previous end.
    """
    zero = float(picture.start.min(initial=np.inf)) if picture.num_spans else 0.0
    start, end = nanoseconds(picture.start - zero), nanoseconds(picture.end - zero)
    row = rows_of(picture.line, start, end)
    order = np.lexsort((start, row, picture.line))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    rows, counts = _rows(picture.line[order], row[order])
    labels, label = _labels(picture.name[order], picture.kind[order])
    noted = np.flatnonzero((picture.waits[order] > 0) | (picture.nbytes[order] > 0))
    return {
        "zero": zero,
        "groups": list(dict.fromkeys(line.group for line in picture.lines)),
        "lines": [[each.group, each.title, each.quiet] for each in picture.lines],
        "rows": rows,
        "counts": counts,
        "kinds": KINDS,
        "labels": [_label(picture.names[name], kind) for name, kind in labels],
        "gap": pack(_gaps(start[order], end[order], counts)),
        "length": pack(end[order] - start[order]),
        "label": pack(label),
        "noted": pack(np.diff(noted, prepend=0)),
        "wait": pack(nanoseconds(picture.waits[order][noted])),
        "nbytes": pack(picture.nbytes[order][noted]),
        "paths": [place[sorted(path, key=lambda i: start[i])].tolist() for path in picture.paths],
        "marks": [
            [m.title, m.group, round((m.start - zero) * 1e9), round((m.end - zero) * 1e9)]
            for m in picture.marks
        ],
        "details": {str(place[span]): text for span, text in picture.details.items()},
        "leftOut": picture.left_out,
    }


def _rows(line: Ints, row: Ints) -> tuple[list[int], list[int]]:
    """Return the line of every row, and its number of spans."""
    keys, counts = np.unique(np.stack([line, row]), axis=1, return_counts=True)
    return keys[0].tolist(), counts.tolist()


def _labels(name: Ints, kind: Ints) -> tuple[list[tuple[int, int]], Ints]:
    """Number the pairs of name and kind, the most frequent first, which takes less space."""
    pairs, which, counts = np.unique(
        np.stack([name, kind]), axis=1, return_inverse=True, return_counts=True
    )
    often = np.argsort(-counts, kind="stable")
    place = np.empty(len(often), np.int64)
    place[often] = np.arange(len(often))
    return [(int(pairs[0, i]), int(pairs[1, i])) for i in often], place[which.reshape(-1)]


def _label(name: str, kind: int) -> list[Any]:
    """Return what the page needs of a name: full name, kind, and label of spans."""
    short = short_name(name)
    return [name, kind] if short == name else [name, kind, short]


def _gaps(start: Ints, end: Ints, counts: Sequence[int]) -> Ints:
    before = np.concatenate([[0], end[:-1]]) if len(end) else end
    before[np.cumsum([0, *counts])[:-1]] = 0
    return start - before
