"""A plan for a recorded step: the planner's candidates, search and reasons on its replay."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import msgspec

from weft.hardware import Platform
from weft.planner.explaining import Explainer
from weft.planner.plan import Choice, Limits, Plan
from weft.planner.planning import PlannedStep, check_limits
from weft.trace import Trace
from weft.trace.analysis.align import RankTrace
from weft.units import format_time
from weft.whatif.joined_job import job_of
from weft.whatif.model import ReplayModel, model_of, slowest_model
from weft.whatif.replay import doubt, iterations_of, require_close
from weft.whatif.retarget import retargeted

_UNEVEN = 0.02  # share by which the typical step differs from the mean before a note says so


def plan_recorded(
    traces: Trace | Sequence[Trace],
    *,
    on: Platform | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    mode: str = "search",
    anyway: bool = False,
) -> PlannedStep:
    """Plan the typical step of one rank's trace, on its own machine or on another.

    Of several traces of one job the slowest rank is planned; the others tell what it waited for.
    A replay that is more than ``MOST_ERROR`` off raises a ReplayError, unless ``anyway``.
    """
    check_limits(limits)
    given = [traces] if isinstance(traces, Trace) else list(traces)
    model = model_of(RankTrace.of(given[0])) if len(given) == 1 else slowest_model(job_of(given))
    if not anyway:
        require_close(model.name, model.replays)
    if on is not None:
        model = retargeted(model, on)
    draft = model.draft(limits)
    search = draft.search
    chosen = search.chosen(mode)
    planned, explainer = search.seconds(chosen), Explainer(search, draft.evaluator, chosen)
    spread = max(abs(each.error) for each in model.replays)
    made = Plan(
        workload=model.name,
        platform=model.machine.name,
        num_ranks=model.graph.num_ranks,
        choices=tuple(_once(each, model) for each in explainer.choices(search.base_seconds)),
        baseline=search.base_seconds,
        planned=planned,
        low=planned * (1 - spread),
        high=planned * (1 + spread),
        fingerprint=_fingerprint(model),
        budget=limits,
        mode=mode,
        notes=_notes(model, given, spread, search.base_seconds, on_its_machine=on is None),
    )
    runs = search.run(search.base), search.run(chosen)
    return PlannedStep(made, *(run.timeline() for run in runs))


def _once(choice: Choice, model: ReplayModel) -> Choice:
    """Number the ops of one iteration, as the recorded step has them."""
    length, count = len(model.graph.steps[choice.step].ops), iterations_of(model.ranks)
    first = 1 + (count - 1) * length
    ops = tuple(op - first for op in choice.ops if op >= first)
    return replace(choice, ops=ops, op=ops[0])


def _notes(
    model: ReplayModel,
    traces: Sequence[Trace],
    spread: float,
    baseline: float,
    *,
    on_its_machine: bool,
) -> tuple[str, ...]:
    notes = [f"the replay is within {100 * spread:.1f} % of what was measured"]
    mean = fmean(each.measured for each in model.replays)
    if on_its_machine and abs(baseline / mean - 1) > _UNEVEN:
        notes.append(
            f"planned for the typical step; the mean of the {len(model.replays)} recorded steps, "
            f"which weft whatif changes, is {format_time(mean)}"
        )
    why = doubt(model.replays)
    if why:
        notes.insert(0, f"unreliable: {why}")
    if len(traces) > 1:
        notes.append(
            f"rank {model.traces[0].rank}, the slowest of {len(traces)}; what it waits for the "
            "others stays"
        )
    return tuple(notes)


def _fingerprint(model: ReplayModel) -> str:
    """Name the step by its collectives in order, and the machine."""
    ops = [(c.kind, c.nbytes, c.group) for op in model.comms if (c := op.collective)]
    parts = (msgspec.json.encode(each) for each in (ops, model.machine.name))
    return "-".join(hashlib.sha256(part).hexdigest()[:16] for part in parts)
