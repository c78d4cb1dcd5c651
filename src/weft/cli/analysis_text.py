"""An analysis as text: the answer first, then the details."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import wrap
from typing import Any

from weft.report.text import Column, page, print_table, print_wrapped, sentence
from weft.timeline.kernel_names import short_name
from weft.trace import Analysis, CollectiveUse, RankAnalysis
from weft.trace.analysis.analysis_result import REPLAYED, StepAdvice, TimePart, TimeSplit
from weft.trace.analysis.kernel_table import COMMUNICATION, COPIES
from weft.units import format_mean, format_rate, format_size, format_time

_MOST_STEPS = 12
_MOST_COLLECTIVES = 10
_MOST_KERNELS = 8
_MOST_LOSSES = 8
_MOST_RANKS = 16  # of more, those that others wait for and the slowest
_NAME = 70  # characters of a kernel name that are shown
_SHADES = {"compute": "█", "moving": "▓", "waiting": "▒", "either": "░", "idle": "·"}
_KEY = ", ".join(f"{shade} {what}" for what, shade in _SHADES.items()) + (
    " (communication only where exposed)"
)
_BAR, _NARROW = 32, 12  # characters of a bar, and of one in a narrow window
_OTHER_COLUMNS = 78  # characters of the other columns


def print_analysis(analysis: Analysis) -> None:
    """Print headline, advice, ranks, steps, collectives, idle reasons and critical path."""
    if analysis.jobs:
        _print_jobs(analysis)
        return
    _print_headline(analysis)
    _print_doubts(analysis)
    _print_advice(analysis)
    _print_ranks(analysis)
    shown = analysis.slowest
    if shown is not None:
        _print_steps(shown, several=len(analysis.ranks) > 1)
        _print_collectives(shown, several=len(analysis.ranks) > 1)
        _print_slowdowns(shown)
        _print_kernels(shown)
        _print_reasons(shown)
    _print_stragglers(analysis)
    _print_notes(analysis)


def _print_jobs(analysis: Analysis) -> None:
    """Print one line for each of several jobs, what each should do first, and the notes."""
    files, jobs = len(analysis.ranks), analysis.jobs
    print(page_bold(f"{files} files of {len(jobs)} different jobs, each analyzed by itself"))
    print("weft analyze with the files of one job shows its details\n")
    named = [(each.name, each.slowest) for each in jobs]
    shown = [(name, slowest) for name, slowest in named if slowest is not None]
    longest = max((slowest.seconds for _, slowest in shown), default=0.0)
    rows = [
        _rank_row(rank, longest) | {"rank": name, "on": rank.trace.device} for name, rank in shown
    ]
    if rows:
        columns = _rank_columns("job", Column("on", "device", right=False))
        print_table(columns, rows, title=f"Jobs: the slowest rank of each; {_KEY}")
    for name in [name for name, slowest in named if slowest is None]:
        print(f"{name}: no GPU event")
    advised = [each for each in jobs if each.advice]
    if advised:
        print(f"\n{page_bold('Do first')} (replayed gains are those of weft whatif)")
    for each in advised:
        first = each.advice[0]
        print_wrapped(f"{page_bold(each.name)}: {first.title}: {gain_of(first)}", "   ")
        print_wrapped(f"   {sentence(first.how)}", "   ")
    print()
    _print_doubts(analysis)


def _print_headline(analysis: Analysis) -> None:
    first = analysis.ranks[0]
    count = len(analysis.ranks)
    of = f" of {analysis.world_size}" if (analysis.world_size or 0) > 1 else ""
    who = f"{count}{of} rank{'s' * (count > 1 or bool(of))}"
    on = f", {first.trace.device}" if first.trace.device else ""
    slowest = analysis.slowest
    if slowest is None:
        print_wrapped(f"{who}{on}: {first.trace.num_events} events, no GPU event")
        return
    split, seconds = slowest.mean_step, slowest.seconds
    what = "a step takes" if slowest.step_time else "the file spans"
    where = f" on rank {slowest.rank}, the slowest," if count > 1 else ""
    how = "laid out, not measured" if first.trace.about.get("laid_out") else "measured"
    print(page_bold(f"{who}{on}: {what} {format_time(seconds)}{where} {how}"))
    communication = (
        f"communicating {format_time(split.communication)} of which "
        f"{format_time(split.exposed)} is exposed{_divided(split, slowest.basis)}"
        if split.communication
        else "no communication"
    )
    print_wrapped(
        f"GPU busy {_percent(slowest.busy_share)}: computing {format_time(split.compute)}, "
        f"{communication}; idle {format_time(slowest.mean_idle)}"
    )
    if slowest.is_gpu_bound:
        walls = fmean(step.wall for step in slowest.counted)
        print(
            f"the host runs ahead of its GPU: its steps take {format_time(walls)}, the GPU's "
            f"{format_time(seconds)}"
        )


def page_bold(text: str) -> str:
    """Return text in bold if the output supports it."""
    place = page()
    lines = wrap(text, place.width)
    return "\n".join(place.paint(line, "bold") for line in lines)


def _divided(split: TimeSplit, basis: str) -> str:
    if split.waiting is None or split.moving is None:
        return " (the split of waiting for other ranks and moving bytes is unknown)"
    share = split.waiting / split.communication
    return f" ({_percent(share)} of communication waits for other ranks, {basis})"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.1 else f"{100 * share:.1f} %"


def _print_advice(analysis: Analysis) -> None:
    if not analysis.advice:
        return
    print(f"\n{page_bold('Do first')} (replayed gains are those of weft whatif)")
    for number, advice in enumerate(analysis.advice, start=1):
        print_wrapped(f"{number}. {page_bold(advice.title)}: {gain_of(advice)}", "   ")
        print_wrapped(f"   {advice.why}.", "   ")
        print_wrapped(f"   {sentence(advice.how)}", "   ")


def gain_of(advice: StepAdvice) -> str:
    """Return what an advice saves, and on what basis."""
    saved = f"{format_time(advice.gain)}, {100 * advice.share:.1f} %"
    if advice.basis == REPLAYED:
        return f"saves {saved} of a step, replayed ({advice.change})"
    why = f": {advice.doubt}" if advice.doubt else ""
    return f"at most {saved} of a step (a bound{why})"


def _print_ranks(analysis: Analysis) -> None:
    longest = max((rank.seconds for rank in analysis.ranks), default=0.0)
    useful = [rank for rank in analysis.ranks if rank.total.num_gpu_events]
    shown = useful
    if len(useful) > _MOST_RANKS:
        late = {each.rank: number for number, each in enumerate(analysis.stragglers)}
        first = sorted(useful, key=lambda r: (late.get(r.rank or 0, len(late)), -r.seconds))
        shown = first[:_MOST_RANKS]
    rows = [_rank_row(rank, longest) for rank in shown]
    if not rows:
        return
    steps = "means of the steps" if analysis.ranks[0].steps else "the whole file"
    print()
    print_table(_rank_columns("rank"), rows, title=f"Ranks: {steps}; {_KEY}")
    if len(useful) > len(shown):
        print(f"and {len(useful) - len(shown)} ranks more: --json has them all")


def _rank_columns(first: str, *more: Column) -> list[Column]:
    return [
        Column("rank", first, style="bold"),
        *more,
        Column("step", "step", format_time),
        Column("compute", "compute", format_time),
        Column("communication", "comm", format_time, optional=True),
        Column("exposed", "exposed", format_time),
        Column("waiting", "waiting", format_time),
        Column("moving", "moving", format_time, optional=True),
        Column("idle", "idle", format_time),
        Column("bar", "where it goes", right=False),
    ]


def _rank_row(rank: RankAnalysis, longest: float) -> dict[str, Any]:
    split, seconds, idle = rank.mean_step, rank.seconds, rank.mean_idle
    name = rank.rank if rank.rank is not None else Path(rank.file).name
    parts = {
        "compute": split.compute,
        "moving": split.exposed_moving or 0.0,
        "waiting": split.exposed_waiting or 0.0,
        "either": split.exposed if split.exposed_moving is None else 0.0,
        "idle": idle,
    }
    return {
        "rank": name,
        "step": seconds,
        "compute": split.compute,
        "communication": split.communication,
        "exposed": split.exposed,
        "waiting": split.waiting,
        "moving": split.moving,
        "idle": idle,
        "bar": _stacked(parts, longest, width_left=page().width - _OTHER_COLUMNS),
    }


def _stacked(parts: dict[str, float], whole: float, *, width_left: int = _BAR) -> str:
    """Draw a stacked bar; boundaries are rounded, so that the parts add up.

    >>> _stacked({"compute": 1.0, "waiting": 2.0, "idle": 1.0}, 4.0, width_left=12)
    '███▒▒▒▒▒▒···'
    """
    out, reached, width = "", 0.0, max(_NARROW, min(_BAR, width_left))
    for what, seconds in parts.items():
        reached += seconds
        out += _SHADES[what] * (round(width * min(reached / max(whole, 1e-12), 1.0)) - len(out))
    return out


def _print_steps(rank: RankAnalysis, *, several: bool) -> None:
    if len(rank.steps) < 2:
        return
    rows = [
        {
            "name": step.name,
            "wall": step.wall,
            "period": step.period,
            "busy": step.split.busy,
            "compute": step.split.compute,
            "communication": step.split.communication,
            "exposed": step.split.exposed,
            "waiting": step.split.waiting,
        }
        for step in rank.steps[:_MOST_STEPS]
    ]
    names = ("wall", "period", "busy", "compute", "communication", "exposed", "waiting")
    columns = [Column("name", "step", right=False, style="bold")]
    spared = ("wall", "compute", "communication")
    columns += [Column(name, name, format_time, optional=name in spared) for name in names]
    more = len(rank.steps) - len(rows)
    title = f"Steps{f' of rank {rank.rank}' if several else ''}"
    title += (
        ": wall on the host, period on the GPU; the other times are of the GPU work it launched"
    )
    print()
    print_table(columns, rows, title=title)
    if more > 0:
        print(f"and {more} more: --json or -o steps.csv has them all")
    if rank.backlog:
        print(
            f"launched before the window, in no step: {rank.backlog.num_gpu_events} GPU events, "
            f"busy {format_time(rank.backlog.busy)}, communication "
            f"{format_time(rank.backlog.communication)}"
        )


def _print_collectives(rank: RankAnalysis, *, several: bool) -> None:
    groups: dict[tuple[Any, ...], list[CollectiveUse]] = {}
    for use in rank.collectives:
        groups.setdefault((use.kind, use.nbytes, use.dtype, use.num_ranks), []).append(use)
    if not groups:
        return
    rows = sorted((_use_row(uses) for uses in groups.values()), key=lambda r: -r["exposed"])
    columns = [
        Column("kind", "collective", right=False, style="bold"),
        Column("nbytes", "size", format_size),
        Column("dtype", "dtype", right=False, optional=True),
        Column("ranks", "ranks"),
        Column("count", "times"),
        Column("seconds", "time", format_time, optional=True),
        Column("exposed", "exposed", format_time),
        Column("waiting", "waiting", format_time),
        Column("moving", "moving", format_time),
        Column("busbw", "bus bandwidth", format_rate, optional=True),
        Column("link", "predicted", format_rate, optional=True),
    ]
    where = f" of rank {rank.rank}" if several else ""
    print()
    title = f"Collectives{where}, in the whole file; waiting and moving {rank.basis}"
    print_table(columns, rows[:_MOST_COLLECTIVES], title=title)
    if len(rows) > _MOST_COLLECTIVES:
        print(f"and {len(rows) - _MOST_COLLECTIVES} kinds and sizes more")


def _use_row(uses: Sequence[CollectiveUse]) -> dict[str, Any]:
    first = uses[0]

    def total(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return sum(known) if known else None

    best = max((use.busbw for use in uses if use.busbw is not None), default=None)
    return {
        "kind": first.kind,
        "nbytes": first.nbytes,
        "dtype": first.dtype,
        "ranks": first.num_ranks,
        "count": len(uses),
        "seconds": sum(use.seconds for use in uses),
        "exposed": sum(use.exposed for use in uses),
        "waiting": total(use.waiting for use in uses),
        "moving": total(use.moving for use in uses),
        "busbw": best if first.basis == "measured" else None,
        "link": first.link,
    }


def _print_slowdowns(rank: RankAnalysis) -> None:
    for each in rank.slowdowns:
        print_wrapped(
            f"{each.family} kernels overlapped with communication take {each.weighted:.2f} times "
            f"as long (median {each.median:.2f}, 90th percentile {each.p90:.2f}; {each.num_pairs} "
            f"kernels seen with and without overlap at the same place of a step)"
        )


def _print_kernels(rank: RankAnalysis) -> None:
    kernels = [use for use in rank.kernel_table if use.family != COMMUNICATION]
    if not kernels:
        return
    num_steps = max(1, len(rank.counted))
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for use in kernels:  # copies are told apart by their kind, not by the sizes of each step
        shape = "" if use.family == COPIES else use.shape
        row = {"family": use.family, "name": short_name(use.name), "shape": shape}
        sums = found.setdefault((use.family, use.name, shape), {**row, "count": 0, "seconds": 0.0})
        sums["count"] += use.count / num_steps
        sums["seconds"] += use.seconds / num_steps
        sums["share"] = sums.get("share", 0.0) + use.share
    rows = sorted(found.values(), key=lambda row: -row["seconds"])
    columns = [
        Column("seconds", "time", format_time),
        Column("share", "share", _percent),
        Column("count", "times", format_mean),
        Column("family", "family", right=False, style="bold"),
        Column("name", "kernel", right=False),
        Column("shape", "input shapes", right=False),
    ]
    print()
    where = "the mean step" if rank.counted else "the whole file"
    title = f"Kernels in {where}, by name and shape; share of GPU time"
    print_table(columns, rows[:_MOST_KERNELS], title=title)
    if len(rows) > _MOST_KERNELS:
        print(f"and {len(rows) - _MOST_KERNELS} kinds more: --json has them")


def _print_reasons(rank: RankAnalysis) -> None:
    idle, where = rank.mean_idle, "of a step" if rank.counted else "in the whole file"
    _print_parts(f"Why the GPU idles, {format_time(idle)} {where}", rank.step_idle, idle)
    under = [part for part in rank.step_launching[:5] if part.seconds > 0.02 * idle]
    if under:
        names = "; ".join(f"{_short(p.what)} {format_time(p.seconds)}" for p in under)
        print_wrapped(f"the host was meanwhile in: {names}")
    if rank.path:
        title = f"Critical path of {rank.path.step}: what its end waited for"
        _print_parts(title, rank.path.parts, rank.path.seconds)


def _print_parts(title: str, parts: Sequence[TimePart], whole: float) -> None:
    if not parts or whole <= 0:
        return
    rows = [
        {"what": part.what, "seconds": part.seconds, "share": part.seconds / whole}
        for part in parts
        if part.seconds >= 0.001 * whole
    ]
    columns = [
        Column("what", "", right=False),
        Column("seconds", "", format_time),
        Column("share", "", _percent),
    ]
    print()
    print_table(columns, rows, title=title)


def _short(name: str) -> str:
    return name if len(name) <= _NAME else name[: _NAME - 2] + ".."


def _print_stragglers(analysis: Analysis) -> None:
    if not analysis.stragglers:
        return
    rows = [
        {
            "rank": each.rank,
            "last": f"{each.num_last} of {each.num_collectives}",
            "cost": each.cost,
            "why": each.why,
        }
        for each in analysis.stragglers
    ]
    columns = [
        Column("rank", "rank", style="bold"),
        Column("last", "was last in"),
        Column("cost", "others waited", format_time),
        Column("why", "because", right=False),
    ]
    print()
    print_table(columns, rows, title="Ranks that the others waited for (summed over the others)")


def _print_doubts(analysis: Analysis) -> None:
    """Print what a reader should know before the numbers: what is missing or does not belong."""
    lost = [f"{Path(r.file).name}: {each}" for r in analysis.ranks for each in r.trace.losses]
    for note in dict.fromkeys((*analysis.notes, *lost[:_MOST_LOSSES])):
        print_wrapped(f"note: {note}")
    if len(lost) > _MOST_LOSSES:
        print(f"note: and {len(lost) - _MOST_LOSSES} more: --json has them all")


def _print_notes(analysis: Analysis) -> None:
    notes = [f"{Path(rank.file).name}: {note}" for rank in analysis.ranks for note in rank.notes]
    if analysis.aligned_within is not None:
        within = format_time(analysis.aligned_within)
        notes.insert(0, f"collectives of all ranks end within {within} of each other (median)")
    if notes:
        print()
    for note in dict.fromkeys(notes):
        print_wrapped(f"note: {note}")
