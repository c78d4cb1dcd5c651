"""A timeline as lines of blocks: one line a queue, one column a share of the makespan."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.text import Text

from weft.report.text import console
from weft.schedule import Kind
from weft.timeline import Activity, Timeline, queue_order
from weft.timeline.timeline import MOVES
from weft.units import format_time

Floats = NDArray[np.float64]
_BLOCKS = {
    Activity.COMPUTATION: ("█", "green"),
    Activity.COMMUNICATION: ("▓", "cyan"),
    Activity.WAITING: ("░", "bright_black"),
}
_LEAST = 0.02  # a column with less than this share of anything stays blank


def print_gantt(timeline: Timeline, *, to: Console | None = None, max_lines: int = 24) -> None:
    """Print what each queue of each rank does over time."""
    place = to or console()
    width = min(place.width, 120)
    for line in gantt_lines(timeline, width=width, max_lines=max_lines):
        place.print(line, soft_wrap=True)


def gantt_lines(timeline: Timeline, *, width: int, max_lines: int) -> Iterator[Text]:
    """Draw the axis, the queues and the legend in lines of at most ``width`` characters."""
    queues = _queues(timeline)
    labels = [f"{name}@{rank}" for rank, _, name in queues]
    margin = max((len(label) for label in labels[:max_lines]), default=0)
    columns = max(width - margin - 8, 10)  # 8: two gaps and the percentage
    first = float(timeline.start.min(initial=0.0))
    edges = np.linspace(first, max(timeline.makespan, first + 1e-12), columns + 1)
    yield _axis(edges, margin, columns)
    for (rank, number, _), label in list(zip(queues, labels, strict=True))[:max_lines]:
        mine = (timeline.rank == rank) & (timeline.queue == number)
        yield _line(timeline, mine, label.ljust(margin), edges)
    if len(queues) > max_lines:
        yield Text(f"and {len(queues) - max_lines} queues more", style="italic")
    legend = Text(" " * (margin + 1))
    for activity, (block, style) in _BLOCKS.items():
        legend.append(block, style).append(f" {activity.name.lower()}   ")
    legend.rstrip()
    yield legend


def _queues(timeline: Timeline) -> list[tuple[int, int, str]]:
    """Give the (rank, queue number, name) that have spans which take time."""
    takes = timeline.end > timeline.start
    pairs = np.unique(np.stack([timeline.rank[takes], timeline.queue[takes]]), axis=1)
    found = [(rank, number, timeline.queues[number]) for rank, number in pairs.T.tolist()]
    return sorted(found, key=lambda each: (each[0], queue_order(each[2])))


def _axis(edges: Floats, margin: int, columns: int) -> Text:
    left, right = format_time(float(edges[0])), format_time(float(edges[-1]))
    return Text(" " * (margin + 1) + left + right.rjust(columns - len(left)), style="italic")


def _line(timeline: Timeline, mine: NDArray[np.bool_], label: str, edges: Floats) -> Text:
    kind = timeline.kind
    groups = {
        Activity.COMPUTATION: kind == Kind.KERNEL,
        Activity.COMMUNICATION: np.isin(kind, (*MOVES, Kind.SIGNAL, Kind.SUBMIT)),
        Activity.WAITING: np.isin(kind, (Kind.WAIT, Kind.LAUNCH)),
    }
    step = edges[1] - edges[0]
    filled = {
        activity: _filled(timeline.start[mine & group], timeline.end[mine & group], edges) / step
        for activity, group in groups.items()
    }
    line = Text(f"{label} ")
    for column in range(len(edges) - 1):
        line.append(*_block({a: float(share[column]) for a, share in filled.items()}))
    works = sum(np.minimum(filled[a], 1.0) for a in groups if a != Activity.WAITING)
    return line.append(f" {100 * float(np.minimum(works, 1.0).mean()):4.0f} %")


def _block(shares: dict[Activity, float]) -> tuple[str, str]:
    """Show what works, if anything does, before what only waits."""
    works = {a: s for a, s in shares.items() if a != Activity.WAITING and s >= _LEAST}
    if works:
        return _BLOCKS[max(works, key=works.__getitem__)]
    return _BLOCKS[Activity.WAITING] if shares[Activity.WAITING] >= _LEAST else (" ", "")


def _filled(start: Floats, end: Floats, edges: Floats) -> Floats:
    """Give the seconds of all intervals that fall between neighbouring edges."""
    return np.diff(_past(start, edges) - _past(end, edges))


def _past(times: Floats, edges: Floats) -> Floats:
    """For each edge, how long the moments before it are past, in sum."""
    ordered = np.sort(times)
    total = np.concatenate([[0.0], np.cumsum(ordered)])
    count = np.searchsorted(ordered, edges)
    return np.asarray(count * edges - total[count])
