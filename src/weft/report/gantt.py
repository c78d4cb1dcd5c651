"""A timeline as text: one line per queue, one column per fraction of the makespan."""

from collections.abc import Iterator, Mapping
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from weft.report.text import Page, page
from weft.schedule import CommandKind
from weft.timeline import MOVES, Activity, Timeline, queue_order
from weft.units import format_time

Floats = NDArray[np.float64]
Piece = tuple[str, str]  # text and its style

_BLOCKS = {
    Activity.COMPUTATION: ("█", "green"),
    Activity.COMMUNICATION: ("▓", "cyan"),
    Activity.WAITING: ("░", "dim"),
}
_WIDEST = 120
_LEAST = 0.02  # columns with a smaller fraction of any activity stay blank


def print_gantt(timeline: Timeline, *, to: Page | None = None, max_lines: int = 24) -> None:
    """Print what each queue of each rank does over time."""
    place = to or page()
    for pieces in gantt_lines(timeline, width=min(place.width, _WIDEST), max_lines=max_lines):
        place.write("".join(place.paint(*piece) for piece in pieces))


def gantt_lines(timeline: Timeline, *, width: int, max_lines: int) -> Iterator[list[Piece]]:
    """Yield the axis, the queues and the legend; queues take at most ``width`` characters."""
    # (label, rank, queue) of queues with spans of nonzero length, in display order.
    takes = timeline.end > timeline.start
    keys = np.unique(timeline.rank[takes].astype(np.int64) << 32 | timeline.queue[takes])
    found = [(key >> 32, key & 0xFFFFFFFF) for key in keys.tolist()]
    found.sort(key=lambda each: (each[0], queue_order(timeline.queues[each[1]])))
    queues = [(f"{timeline.queues[number]}@{rank}", rank, number) for rank, number in found]
    margin = max((len(label) for label, *_ in queues[:max_lines]), default=0) + 1
    columns = max(width - margin - 7, 10)  # 7: the percentage and a gap
    first = float(timeline.start.min(initial=0.0))
    edges = np.linspace(first, max(timeline.makespan, first + 1e-12), columns + 1)
    yield _axis(edges, margin)
    for label, rank, number in queues[:max_lines]:
        mine = timeline.of(rank=rank, queue=timeline.queues[number])
        yield [(label.ljust(margin), ""), *_blocks(mine, edges)]
    if len(queues) > max_lines:
        yield [(f"and {len(queues) - max_lines} queues more", "italic")]
    yield [(" " * margin, ""), *_legend()]


def _axis(edges: Floats, margin: int) -> list[Piece]:
    left, right = format_time(float(edges[0])), format_time(float(edges[-1]))
    return [(" " * margin + left + right.rjust(len(edges) - 1 - len(left)), "italic")]


def _legend() -> Iterator[Piece]:
    for activity, piece in _BLOCKS.items():
        yield piece
        yield f" {activity.name.lower()}   ", ""


def _blocks(mine: Timeline, edges: Floats) -> Iterator[Piece]:
    """Yield one queue, and its busy fraction."""
    kinds = {
        Activity.COMPUTATION: (CommandKind.KERNEL,),
        Activity.COMMUNICATION: (*MOVES, CommandKind.SIGNAL, CommandKind.SUBMIT),
        Activity.WAITING: (CommandKind.WAIT, CommandKind.LAUNCH),
    }
    shares = {activity: _shares(mine.of(kind=kind), edges) for activity, kind in kinds.items()}
    drawn = [
        _block({activity: float(share[column]) for activity, share in shares.items()})
        for column in range(len(edges) - 1)
    ]
    for (_, style), run in groupby(drawn, key=lambda piece: piece):
        yield "".join(block for block, _ in run), style
    works = shares[Activity.COMPUTATION] + shares[Activity.COMMUNICATION]
    yield f" {100 * float(np.minimum(works, 1.0).mean()):4.0f} %", ""


def _block(shares: Mapping[Activity, float]) -> Piece:
    """Return the block of a column; work takes precedence over waiting."""
    works = {a: s for a, s in shares.items() if a != Activity.WAITING and s >= _LEAST}
    if works:
        return _BLOCKS[max(works, key=works.__getitem__)]
    return _BLOCKS[Activity.WAITING] if shares[Activity.WAITING] >= _LEAST else (" ", "")


def _shares(spans: Timeline, edges: Floats) -> Floats:
    """Return for each column the mean number of active spans."""
    seconds = np.diff(_past(spans.start, edges) - _past(spans.end, edges))
    return np.asarray(seconds / (edges[1] - edges[0]))


def _past(times: Floats, edges: Floats) -> Floats:
    """Return for each edge the total time that has passed since the times before it."""
    ordered = np.sort(times)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    count = np.searchsorted(ordered, edges)
    return np.asarray(count * edges - total[count])
