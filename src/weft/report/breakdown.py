"""Where the time of every rank and step went, as bars with tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from weft.report.bars import ChartBar, bar_chart
from weft.report.page import Section
from weft.report.text import Column
from weft.report.traced import rank_name
from weft.timeline.kernel_names import short_name
from weft.trace.analysis.analysis_result import CriticalPath, RankAnalysis, TimeSplit
from weft.units import format_time

COMPUTE, OVERLAPPED = "computation", "overlapped communication"
MOVING, WAITING, EXPOSED = "exposed: moving bytes", "exposed: waiting for ranks", "exposed"
IDLE, OTHER_IDLE = "idle", "idle: other reasons"
_STYLE = {
    COMPUTE: "computation",
    OVERLAPPED: "overlapped",
    MOVING: "communication",
    EXPOSED: "communication",
    WAITING: "waiting",
    IDLE: "idle",
}
_REASONS = ("idle", "idle-1", "idle-2")  # styles of the longest reasons; the rest is combined
_MOST_STEPS = 24
_MOST_PARTS = 8
_PATH_STYLE = {
    "compute": "computation",
    "copies": "copy",
    "moving bytes": "communication",
    "communication": "communication",
    "waiting for other ranks": "waiting",
    "host": "host",
}


def split_parts(split: TimeSplit) -> dict[str, float]:
    """Split busy time into disjoint parts."""
    overlapped = max(split.communication - split.exposed, 0.0)
    parts = {COMPUTE: max(split.compute - overlapped, 0.0), OVERLAPPED: overlapped}
    if split.exposed_moving is None or split.exposed_waiting is None:
        return parts | {EXPOSED: split.exposed}
    return parts | {MOVING: split.exposed_moving, WAITING: split.exposed_waiting}


def by_rank(ranks: Sequence[RankAnalysis]) -> Section:
    """Return the section on the mean step of every rank, idle time by its reason."""
    reasons = _reasons(ranks)
    style = _STYLE | {f"idle: {what}": look for what, look in zip(reasons, _REASONS, strict=False)}
    style |= {OTHER_IDLE: "idle-3"}
    every = {rank_name(rank): _rank_parts(rank, reasons) for rank in ranks}
    bars = [
        ChartBar(name, parts, format_time(sum(parts.values()))) for name, parts in every.items()
    ]
    text = (
        "The mean step of every rank, or all of a file without steps. The first part of a bar is "
        "computation; the parts to its right, communication and idle time, could be saved."
    )
    label = "Where the mean step of every rank went"
    return Section(
        "Where the time of each rank goes",
        text,
        _part_columns("rank", every.values()),
        [{"name": name, **parts, "all": sum(parts.values())} for name, parts in every.items()],
        drawings=[bar_chart(bars, style, label=label)],
        fold="The parts of every rank as a table",
    )


def _reasons(ranks: Sequence[RankAnalysis]) -> list[str]:
    """Return the reasons of idle time that take longest over all ranks."""
    total: dict[str, float] = {}
    for rank in ranks:
        for part in rank.step_idle:
            total[part.what] = total.get(part.what, 0.0) + part.seconds
    return sorted(total, key=lambda what: -total[what])[: len(_REASONS)]


def _rank_parts(rank: RankAnalysis, reasons: Sequence[str]) -> dict[str, float]:
    parts = split_parts(rank.mean_step)
    known = {part.what: part.seconds for part in rank.step_idle}
    named = {f"idle: {what}": known.get(what, 0.0) for what in reasons}
    rest = rank.mean_idle - sum(named.values())
    return parts | named | {OTHER_IDLE: rest if rest > 1e-9 else 0.0}


def _part_columns(first: str, rows: Any) -> list[Column]:
    keys = dict.fromkeys(key for row in rows for key, value in row.items() if value > 0)
    return [
        Column("name", first, right=False),
        Column("all", "in all", format_time),
        *(Column(key, key, format_time) for key in keys),
    ]


def by_step(ranks: Sequence[RankAnalysis]) -> Iterator[Section]:
    """Yield the section on every step; a job of one step is shown by its ranks alone."""
    found = [
        (f"{rank_name(rank)}, {step.name}" if len(ranks) > 1 else step.name, step)
        for rank in ranks
        for step in rank.steps
        if step.split.num_gpu_events
    ]
    if max(len(rank.steps) for rank in ranks) < 2:
        return
    rows = list[dict[str, Any]]()
    for name, step in found:
        split = step.inside or step.split
        parts = split_parts(split)
        parts[IDLE] = max(step.seconds - split.busy, 0.0)
        rows.append({"name": name, "all": step.seconds, **parts})
    bars = [
        ChartBar(
            row["name"], {k: v for k, v in row.items() if k in _STYLE}, format_time(row["all"])
        )
        for row in rows[:_MOST_STEPS]
    ]
    yield Section(
        "Step by step",
        "A step is from its first kernel to that of the next step, with all that the GPU did in "
        "that time; where no step follows, it is the profiler's mark and the work launched in it.",
        _part_columns("step", [{k: v for k, v in row.items() if k in _STYLE} for row in rows]),
        rows,
        drawings=[bar_chart(bars, _STYLE, label="Where the time of every step went")],
        fold="The parts of every step as a table",
    )


def paths_section(ranks: Sequence[RankAnalysis]) -> Iterator[Section]:
    """Yield the section on the critical path of a typical step on every rank."""
    paths = {rank_name(rank): rank.path for rank in ranks if rank.path is not None}
    if not paths:
        return
    style = _path_style(paths.values())
    bars = [
        ChartBar(name, {part.what: part.seconds for part in path.parts}, format_time(path.seconds))
        for name, path in paths.items()
    ]
    columns = [
        Column("rank", "rank", right=False),
        Column("what", "what", right=False),
        Column("seconds", "on the path", format_time),
        Column("share", "share", "{:.0%}".format),
        Column("count", "times", lambda count: str(count) if count else ""),
    ]
    yield Section(
        "Critical path",
        "What the end of a step waited for, walked back to its start: only a shorter part here "
        "makes the step shorter. Host: the CPU had not launched the next kernel yet.",
        columns,
        [row for name, path in paths.items() for row in _path_rows(name, path)],
        drawings=[bar_chart(bars, style, label="What the critical path of every rank consists of")],
        fold="The parts of the paths and the longest things on them as a table",
    )


def _path_style(paths: Any) -> dict[str, str]:
    total: dict[str, float] = {}
    for path in paths:
        for part in path.parts:
            total[part.what] = total.get(part.what, 0.0) + part.seconds
    rest = iter(("control", "idle", "idle-1", "idle-2", *["idle-3"] * len(total)))
    ordered = sorted(total, key=lambda what: -total[what])
    return {what: _PATH_STYLE.get(what) or next(rest) for what in ordered}


def _path_rows(name: str, path: CriticalPath) -> Iterator[Mapping[str, Any]]:
    for part in (*path.parts, *path.longest[:_MOST_PARTS]):
        yield {
            "rank": name,
            "what": short_name(part.what),
            "seconds": part.seconds,
            "share": part.seconds / path.seconds if path.seconds else 0.0,
            "count": part.count,
        }


def idle_section(ranks: Sequence[RankAnalysis]) -> Iterator[Section]:
    """Yield the section on the reasons of idle time."""
    rows: list[dict[str, Any]] = [
        {
            "rank": rank_name(rank),
            "what": part.what,
            "seconds": part.seconds,
            "share": part.seconds / rank.seconds if rank.seconds else 0.0,
            "count": part.count,
        }
        for rank in ranks
        for part in rank.step_idle
    ]
    columns = [
        Column("rank", "rank", right=False),
        Column("what", "what the host did meanwhile", right=False),
        Column("seconds", "idle", format_time),
        Column("share", "of the step", "{:.1%}".format),
        Column("count", "times"),
    ]
    if rows:
        total: dict[str, float] = {}
        for row in rows:
            total[row["what"]] = total.get(row["what"], 0.0) + row["seconds"]
        bars = [
            ChartBar(what, {"idle": seconds}, format_time(seconds))
            for what, seconds in sorted(total.items(), key=lambda each: -each[1])
        ]
        yield Section(
            "Why GPUs were idle",
            "Gaps between GPU events in the mean step, by what held the next one up"
            + (", summed over the ranks." if len(ranks) > 1 else "."),
            columns,
            rows,
            drawings=[bar_chart(bars, {"idle": "host"}, label="Idle time by reason")],
            fold="The reasons of every rank as a table",
        )
