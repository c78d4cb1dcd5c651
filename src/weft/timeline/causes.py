"""The dependencies of spans: what each span waited for, and the critical path.

A span waits for its predecessor on its thread, a Signal, a Submit or a Launch. A thread is what
runs in order: a queue, or one lane of a Launch.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from weft.schedule import CommandKind

if TYPE_CHECKING:
    from weft.timeline.timeline import Timeline

Ints = NDArray[np.int64]
_WIDE = 1 << 40  # more than the commands of any queue


def released_by(timeline: "Timeline") -> Ints:
    """Return for each Wait the Signal that released it: the one that made its flag reach the count.

    -1 for all other spans, and where that Signal is not part of the timeline.
    """
    cause = np.full(timeline.num_spans, -1, np.int64)
    waits = np.flatnonzero((timeline.kind == CommandKind.WAIT) & (timeline.count > 0))
    cause[waits] = _signal(timeline, timeline.flag[waits], timeline.count[waits])
    return cause


def _signal(timeline: "Timeline", flag: Ints, count: Ints) -> Ints:
    """Return the Signal that makes each flag reach its count, or -1."""
    signals = np.flatnonzero(timeline.kind == CommandKind.SIGNAL)
    signals = signals[np.lexsort((timeline.end[signals], timeline.flag[signals]))]
    flags = timeline.flag[signals]
    place = np.searchsorted(flags, flag) + count - 1
    found = place < np.searchsorted(flags, flag, "right")
    signals = np.append(signals, -1)
    return signals[np.where(found, place, -1)]


def handed_over_by(timeline: "Timeline") -> Ints:
    """Return for each command of a submitted queue the Submit that handed it over, otherwise -1.

    A held Submit is released by the first Signal of its flag, which takes its place.
    """
    cause = np.full(timeline.num_spans, -1, np.int64)
    submits = np.flatnonzero(timeline.kind == CommandKind.SUBMIT)
    if not len(submits):
        return cause
    submits = submits[np.argsort(timeline.target[submits], kind="stable")]
    targets, first, which = np.unique(
        timeline.target[submits], return_index=True, return_inverse=True
    )
    total = np.cumsum(timeline.count[submits])
    before = (total - timeline.count[submits])[first]
    upto = which * _WIDE + total - before[which]
    queue = timeline.rank.astype(np.int64) << 32 | timeline.queue
    number = np.searchsorted(targets, queue)
    fed = targets[np.minimum(number, len(targets) - 1)] == queue
    fed = np.flatnonzero(fed & (timeline.fed >= 0))
    place = np.searchsorted(upto, number[fed] * _WIDE + timeline.fed[fed], "right")
    inside = place < len(submits)
    by = submits[place[inside]]
    signal = _signal(timeline, timeline.flag[by], np.ones(len(by), np.int64))
    held = (timeline.flag[by] >= 0) & (signal >= 0)
    cause[fed[inside]] = np.where(held, signal, by)
    return cause


def previous_on_thread(timeline: "Timeline") -> Ints:
    """Return for each span the previous one on its queue or lane, or the Launch of its lane.

    A Call lasts as long as its commands and precedes nothing.
    """
    rows = np.flatnonzero(timeline.kind != CommandKind.CALL)
    launch = _launch_around(timeline)
    keys = (launch[rows], timeline.lane[rows], timeline.queue[rows], timeline.rank[rows])
    rows = rows[np.lexsort((rows, *keys))]
    same = np.ones(max(len(rows) - 1, 0), bool)
    for column in (launch, timeline.lane, timeline.queue, timeline.rank):
        same &= column[rows[1:]] == column[rows[:-1]]
    before = np.full(timeline.num_spans, -1, np.int64)
    before[rows[1:][same]] = rows[:-1][same]
    return np.where(before >= 0, before, launch)


def _launch_around(timeline: "Timeline") -> Ints:
    """Return for each span the Launch whose lane it is in, or -1."""
    around = np.where(timeline.lane >= 0, timeline.parent, -1)
    while (off := (around >= 0) & (timeline.kind[around] != CommandKind.LAUNCH)).any():
        around = np.where(off, timeline.parent[around], around)
    return around


def critical_path(timeline: "Timeline") -> tuple[int, ...]:
    """Walk back from the last end, at each span to what it waited for last.

    A Launch is entered at its end through its last command and left at its start, where it is part
    of the path until its first command begins.
    """
    if not timeline.num_spans:
        return ()
    before = previous_on_thread(timeline)
    causes = (released_by(timeline), handed_over_by(timeline))
    last_inside = _last_inside(timeline)
    at, path, seen = _last(timeline), list[int](), set[int]()
    while at >= 0 and at not in seen:
        while (inner := last_inside.get(at, -1)) >= 0 and inner not in seen:
            at = inner
        seen.add(at)
        path.append(at)
        launch = int(before[at]) if timeline.lane[at] >= 0 else -1
        opened = launch >= 0 and timeline.kind[launch] == CommandKind.LAUNCH
        ends = [(float(timeline.end[c[at]]), int(c[at])) for c in causes if c[at] >= 0]
        if before[at] >= 0:
            then = timeline.start if opened else timeline.end
            ends.append((float(then[before[at]]), int(before[at])))
        at = max(ends, default=(0.0, -1))[1]
        if at >= 0 and timeline.start[at] < 0:  # prelaunched commands are not part of the makespan
            break
        if opened and at == launch:
            last_inside.pop(launch, None)  # left at its start, not entered at its end
    return tuple(reversed(path))


def _last(timeline: "Timeline") -> int:
    rows = np.flatnonzero(timeline.kind != CommandKind.CALL)
    return int(rows[np.argmax(timeline.end[rows])]) if len(rows) else -1


def _last_inside(timeline: "Timeline") -> dict[int, int]:
    """Return for each Launch the command inside it that ends last."""
    launch = _launch_around(timeline)
    rows = np.flatnonzero((launch >= 0) & (timeline.kind != CommandKind.CALL))
    rows = rows[np.lexsort((timeline.end[rows], launch[rows]))]
    return dict(zip(launch[rows].tolist(), rows.tolist(), strict=True))
