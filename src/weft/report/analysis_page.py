"""The page of a trace analysis: what to do first, where the time goes, and the timeline."""

import re
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from weft.report.breakdown import by_rank, by_step, idle_section, paths_section
from weft.report.exchanges import bandwidth_section, collectives_section
from weft.report.interactive_timeline import timeline_section
from weft.report.page import Section, html_page, tiles, words
from weft.report.text import Column, sentence
from weft.report.traced import picture_of_ranks, rank_name
from weft.trace.analysis.analysis_result import REPLAYED, Analysis, RankAnalysis, StepAdvice
from weft.units import format_time

_MEANINGS = {
    "GPU busy": "A kernel, copy or memset was running on the GPU.",
    "Communication": "Collective kernels (NCCL, RCCL and others) were running.",
    "Overlapped": "Communication overlapped with other work of the same GPU: it costs little.",
    "Exposed": "Communication while nothing else ran on that GPU: it lengthens the step.",
    "Waiting": "The part of a collective before its last rank came (and after its first rank "
    "was done): no bytes move. A faster link does not help, balance between ranks does.",
    "Moving": "From the moment the last rank came to the first end: bytes move. With one rank's "
    "trace alone it is estimated from the link, and marked so.",
    "Idle": "Nothing ran on the GPU. The reason is what the host did meanwhile.",
    "Critical path": "Walked back from the end of a step: each thing waited for the one before "
    "it. Only what stands on it can make the step shorter.",
    "Bus bandwidth": "As nccl-tests counts: bytes moved per link, the same for any number of "
    "ranks, so that it compares with the rate of a link. The predicted one is that of a "
    "collective of this size alone.",
}


def page(analysis: Analysis) -> str:
    """Return the page of an analysis."""
    if analysis.jobs:
        return _page_of_jobs(analysis)
    ranks = [rank for rank in analysis.ranks if rank.total.num_gpu_events]
    sections = [
        _first(analysis),
        *_where(ranks),
        collectives_section(ranks),
        bandwidth_section(ranks),
        *_timeline(analysis.ranks),
        *_stragglers(analysis),
        *_slowdowns(ranks),
        _about(analysis),
    ]
    shown = [section for section in sections if section is not None]
    return html_page(
        _title(analysis), shown, lead=_lead(analysis), top=tiles(list(_tiles(analysis)))
    )


def _page_of_jobs(analysis: Analysis) -> str:
    """Return the page of several jobs: what each should do first, and where its steps go."""
    sections = []
    for job in analysis.jobs:
        ranks = [rank for rank in job.ranks if rank.total.num_gpu_events]
        bars = by_rank(ranks).drawings if ranks else ()
        sections.append(Section(job.name, _lead(job), drawings=[*bars, *_first(job).drawings]))
    return html_page(
        f"Where the time goes: {len(analysis.jobs)} jobs",
        [*sections, _about(analysis)],
        lead=f"{len(analysis.ranks)} files of {len(analysis.jobs)} different jobs, each analyzed "
        "by itself. A page of the files of one job shows its steps, collectives and timeline.",
    )


def _title(analysis: Analysis) -> str:
    ranks = analysis.ranks
    if len(ranks) == 1:
        return f"Where the time goes: {Path(ranks[0].file).name}"
    devices = {rank.trace.device for rank in ranks if rank.trace.device}
    on = f" on {devices.pop()}" if len(devices) == 1 else ""
    return f"Where the time goes: {len(ranks)} ranks{on}"


def _lead(analysis: Analysis) -> str:
    """Return a summary in two sentences."""
    worst = analysis.slowest
    if worst is None:
        return "These files contain no GPU events."
    split, whole = worst.mean_step, worst.seconds
    lead = f"{format_time(whole)} of {rank_name(worst)} were recorded. Its GPU"
    if worst.step_time is not None:
        who = f" on {rank_name(worst)}, the slowest" if len(analysis.ranks) > 1 else ""
        lead = f"A step takes {format_time(worst.step_time)}{who}. Its GPU"
    lead += (
        f" computes for {_share(split.compute, whole)} of that, "
        f"communicates for {_share(split.exposed, whole)} with nothing overlapped, and is idle for "
        f"{_share(worst.mean_idle, whole)}."
    )
    if split.exposed_waiting is None:
        lead += " What of its communication waits for other ranks is unknown."
    elif split.exposed > 0:
        waits = _share(split.exposed_waiting, split.exposed)
        seen = "" if worst.basis == "measured" else f" ({worst.basis})"
        lead += f" {waits} of that communication is waiting for other ranks{seen}."
    return lead


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole > 0 else "-"


def _tiles(analysis: Analysis) -> Iterator[tuple[str, str, str]]:
    worst = analysis.slowest
    if worst is None:
        return
    split, whole = worst.mean_step, worst.seconds
    of = "of the mean step" if worst.step_time is not None else f"of {format_time(whole)} recorded"
    if worst.step_time is not None:
        many = f"mean of {len(worst.counted)} steps" if len(worst.counted) > 1 else "one step"
        who = f"{rank_name(worst)}, the slowest; " if len(analysis.ranks) > 1 else ""
        yield "Step", format_time(worst.step_time), who + many
    yield "GPU busy", _share(worst.busy_share, 1.0), of
    yield (
        "Communication",
        format_time(split.communication),
        f"{_share(split.communication, whole)} {of}",
    )
    yield (
        "Exposed",
        format_time(split.exposed),
        f"{_share(split.exposed, whole)}: no kernel overlapped it",
    )
    if split.waiting is not None and split.communication:
        share = _share(split.waiting, split.communication)
        yield (
            "Waiting for ranks",
            format_time(split.waiting),
            f"{share} of communication, {worst.basis}",
        )
    elif split.waiting is None:
        yield "Waiting for ranks", "unknown", "nothing tells it from moving bytes"
    yield "Idle", format_time(worst.mean_idle), f"{_share(worst.mean_idle, whole)} {of}"


def _first(analysis: Analysis) -> Section:
    """Return the section with the advice, which comes first."""
    count = len(analysis.advice)
    if not count:
        return Section("What to do first", "No change would save more than 1 % of a step.")
    title = "What to do first"
    text = (
        "Most promising first. A replayed gain was simulated, as by weft whatif; a bound is the "
        "time that a step loses, the most that could be saved."
    )
    items = "".join(map(_advice, analysis.advice))
    return Section(title, text, drawings=[f'<ol class="first">{items}</ol>'])


def _advice(advice: StepAdvice) -> str:
    return (
        f"<li><p><strong>{escape(advice.title)}</strong> "
        f'<span class="gain">{escape(_gain(advice))}</span></p>'
        f"<p>{_prose(advice.why)}</p>"
        f"<p>{_prose('Try: ' + advice.how)}</p></li>"
    )


def _prose(text: str) -> str:
    """Return a sentence as HTML; what stands in backquotes is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(sentence(text)))


def _gain(advice: StepAdvice) -> str:
    saved = f"{format_time(advice.gain)} of a step, {100 * advice.share:.1f} %"
    if advice.basis == REPLAYED:
        return f"saves {saved} (replayed: {advice.change})"
    return f"at most {saved} (bound{f': {advice.doubt}' if advice.doubt else ''})"


def _where(ranks: Sequence[RankAnalysis]) -> Iterator[Section]:
    if ranks:
        yield by_rank(ranks)
        yield from by_step(ranks)
        yield from paths_section(ranks)
        yield from idle_section(ranks)


def _timeline(ranks: Sequence[RankAnalysis]) -> Iterator[Section]:
    picture = picture_of_ranks(ranks)
    if picture.num_spans:
        whole = (
            "What every GPU stream did." if all(r.trace.is_whole for r in ranks) else _COLLECTIVES
        )
        text = (
            f"{whole} In a collective the striped part waits for other ranks "
            "and the rest moves bytes; the critical path is underlined."
        ) + (" All ranks are on one clock." if len(ranks) > 1 else "")
        yield timeline_section(picture, "Timeline", text)


_COLLECTIVES = "The collectives of every rank; other events of more than 16 ranks are not kept."


def _stragglers(analysis: Analysis) -> Iterator[Section]:
    if not analysis.stragglers:
        return
    columns = [
        Column("rank", "rank"),
        Column("last", "came last", right=False),
        Column("cost", "cost to the others, summed", format_time),
        Column("why", "because", right=False),
    ]
    rows = [
        {
            "rank": each.rank,
            "last": f"in {each.num_last} of {each.num_collectives} collectives",
            "cost": each.cost,
            "why": each.why,
        }
        for each in analysis.stragglers
    ]
    yield Section("Ranks that others wait for", "", columns, rows)


def _slowdowns(ranks: Sequence[RankAnalysis]) -> Iterator[Section]:
    rows = [
        {
            "rank": rank_name(rank),
            "family": each.family,
            "pairs": each.num_pairs,
            "median": each.median,
            "weighted": each.weighted,
            "p90": each.p90,
            "lost": each.lost,
        }
        for rank in ranks
        for each in rank.slowdowns
    ]
    columns = [
        Column("rank", "rank", right=False),
        Column("family", "kernels", right=False),
        Column("pairs", "pairs"),
        Column("median", "median", "{:.2f}x".format),
        Column("weighted", "by time", "{:.2f}x".format),
        Column("p90", "worst tenth", "{:.2f}x".format),
        Column("lost", "total loss", format_time),
    ]
    if rows:
        text = (
            "How much longer the same kernel takes when overlapped with communication: matched by "
            "its place in steps with overlap and in steps without."
        )
        yield Section("Slowdown by communication", text, columns, rows)


def _about(analysis: Analysis) -> Section:
    """Return the section on the input files, what could not be read, and definitions."""
    columns = [
        Column("file", "file", right=False),
        Column("rank", "rank"),
        Column("device", "GPU", right=False),
        Column("events", "events", "{:,}".format),
        Column("gpu", "GPU events", "{:,}".format),
        Column("note", "note", right=False),
    ]
    rows = [
        {
            "file": Path(rank.file).name,
            "rank": rank.rank,
            "device": rank.trace.device,
            "events": rank.trace.num_events,
            "gpu": rank.total.num_gpu_events,
            "note": "; ".join([*rank.trace.losses, *rank.notes]),
        }
        for rank in analysis.ranks
    ]
    notes = [sentence(note) for note in analysis.notes]
    if analysis.aligned_within is not None:
        within = format_time(analysis.aligned_within)
        notes.append(f"Matching collectives end within {within} of each other on all ranks.")
    return Section(
        "What was read, and what the words mean",
        " ".join(notes),
        columns,
        rows,
        drawings=[words(_MEANINGS)],
    )
