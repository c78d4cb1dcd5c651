"""``weft plan --search layout``: the fastest layouts of a training job, and why the first is."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft.cli.outputs import print_json, print_written, write
from weft.cli.verbs.predict_verb import peak_flops
from weft.errors import UsageError
from weft.models.transformer import Transformer
from weft.report.text import Column, print_table, print_wrapped
from weft.result_tables import flat
from weft.units import format_percent, format_size, format_time

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.planner.layout_search import LayoutChoice, LayoutSearch

_PARTS = ("compute", "exposed", "waiting", "host", "idle")
_LEAST_SHARE = 0.1  # of a difference, from which on a part of it is told
_IMPLIED = ("sp", "count_ends")  # settings that follow from tp and pp
_OTHER_NAMES = {"interleave": "vp", "micro_batch": "micro"}


def search_layouts(
    what: str,
    workloads: Sequence[str],
    machine: "Platform",
    given: dict[str, str],
    path: Path | None,
    gpu_hour: float = 0.0,
    *,
    place: str,
    json: bool,
) -> None:
    """Search the layouts of one workload and print the best; ``place`` names the machine."""
    from weft.models.find import find_job
    from weft.planner.layout_search import LayoutSearch

    if what != "layout":
        raise UsageError(f"--search must be layout (got {what!r})", "Use --search layout.")
    if path is not None and path.suffix != ".csv":
        raise UsageError(
            f"-o: layouts are written as .csv (got {path.name!r})", "Use -o layouts.csv."
        )
    job = find_job(workloads[0], machine.num_ranks, given)
    if job is None or len(workloads) > 1:
        raise UsageError(
            f"--search layout: {workloads[0]!r} is not a model or configuration",
            "Use a name of weft models, or a configuration file.",
        )
    search = LayoutSearch(job, machine, frozenset(_fixed_settings(given)))
    found = search.best(cores=len(os.sched_getaffinity(0)))
    peak = peak_flops(job, machine)
    rows = [each.as_row(peak, gpu_hour) for each in found]
    note = write(path, [flat(row) | flat(row["settings"]) for row in rows]) if path else ""
    if json:
        more: dict[str, Any] = {"layouts": search.num_layouts, "fitting": search.num_fitting}
        more["notes"] = list(job.notes)
        print_json("plan", machine.name, rows, **more)
    else:
        words = [workloads[0], *(f"--set {k}={v}" for k, v in given.items() if k != "stack")]
        words += [f"--stack {given['stack']}"] if "stack" in given else []
        words.append(place)
        print_layouts(job.name, machine, search, found, rows, " ".join(words))
    print_written(note, quiet=json)


def _fixed_settings(given: dict[str, str]) -> list[str]:
    """Return the searched settings that were given, by their names in a model."""
    names = {"vp": "interleave", "fsdp": "zero"}
    return [names.get(key, key) for key in given]


def print_layouts(
    name: str,
    machine: "Platform",
    search: "LayoutSearch",
    found: "Sequence[LayoutChoice]",
    rows: Sequence[dict[str, Any]],
    asked: str,
) -> None:
    """Print the answer, the table, and what to do next; ``asked`` are the words of the user."""
    best = rows[0]
    print_wrapped(
        f"{name} on {machine.num_ranks} ranks of {machine.name}: {_words(best['settings'])} takes "
        f"{format_time(best['seconds'])} a step, predicted ({format_time(best['low'])} to "
        f"{format_time(best['high'])})"
    )
    print_wrapped(
        f"{search.num_layouts} layouts divide the ranks, {search.num_fitting} fit into memory; "
        "the best, predicted:"
    )
    columns = [
        Column("layout", "layout", right=False, style="bold"),
        Column("seconds", "step", format_time),
        Column("tokens_per_second_per_rank", "tokens/s/GPU", "{:,.0f}".format),
        Column("mfu", "MFU", lambda share: format_percent(100 * share)),
        Column("exposed", "exposed", format_time),
        Column("memory", "memory", format_size),
    ]
    if "cost_per_million_tokens" in best:
        columns.append(Column("cost_per_million_tokens", "cost/M tokens", "{:,.3g}".format))
    print_table(columns, [row | {"layout": _words(row["settings"])} for row in rows])
    if search.num_open:
        print_wrapped(
            f"{search.num_open} more layouts may be as fast as these, but were not predicted; fix "
            "some settings with --set to narrow the search"
        )
    if len(found) > 1:
        print_wrapped(f"against the second: {difference(found[0], found[1])}")
    own = search.own()
    if own is not None:
        fits = "" if _fits(own, machine) else ", which does not fit"
        shown = _words(own.settings) or "data parallel"
        print_wrapped(f"against the job as given ({shown}{fits}): {difference(found[0], own)}")
    asked_model = search.job.model
    assert isinstance(asked_model, Transformer)
    changes = found[0].changes_of(asked_model)
    given = " ".join(
        f"--set {key}={str(value).lower()}"
        for key, value in changes.items()
        if f"--set {key}=" not in asked
    )
    print_wrapped(f"next: weft plan {asked} {given}")
    for note in search.job.notes:
        print_wrapped(note)


_NAMES = {
    "compute": "computation",
    "exposed": "exposed communication",
    "waiting": "waiting for other stages and ranks",
    "host": "waiting for the host",
    "idle": "idling",
}


def difference(first: "LayoutChoice", second: "LayoutChoice") -> str:
    """Return how much faster the first layout is, and where the seconds are."""
    ours, theirs = first.prediction.breakdown, second.prediction.breakdown
    whole = second.seconds - first.seconds
    parts = {part: theirs[part] - ours[part] for part in _PARTS}
    causes = [
        f"{format_time(abs(seconds))} {'less' if seconds > 0 else 'more'} {_NAMES[part]}"
        for part, seconds in sorted(parts.items(), key=lambda item: -abs(item[1]))
        if abs(seconds) > _LEAST_SHARE * abs(whole)
    ]
    share = 100 * (second.seconds / first.seconds - 1)
    faster = f"{abs(share):.1f} % {'faster' if share >= 0 else 'slower'}"
    return f"{faster}; {', '.join(causes)}" if causes else faster


def _fits(choice: "LayoutChoice", machine: "Platform") -> bool:
    memory = choice.prediction.graph.memory
    return memory is None or memory.total <= machine.require_device().memory_bytes


def _words(settings: dict[str, Any]) -> str:
    return " ".join(
        f"{_OTHER_NAMES.get(key, key)}={value}"
        for key, value in settings.items()
        if key not in _IMPLIED
    )
