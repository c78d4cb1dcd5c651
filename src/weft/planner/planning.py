"""Which strategy each pair of a step should use: enumerate, price, choose, explain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from weft.errors import NoPlanError, UsageError
from weft.hardware.software_stack import SoftwareStack, completed_stack
from weft.planner.buckets import TIMES, with_buckets
from weft.planner.candidates import Candidate, infeasible
from weft.planner.evaluation import StepEvaluator
from weft.planner.explaining import Explainer
from weft.planner.groups import groups_of
from weft.planner.on_cores import on_cores
from weft.planner.plan import Alternative, Choice, Limits, Plan, fingerprint
from weft.planner.predict import step_range
from weft.planner.prices import Prices, default_library
from weft.planner.search import GroupOptions, Search
from weft.planner.strategies import StrategyContext, baseline, candidates_of
from weft.planner.strategies.compressed import error_of
from weft.schedule.strategy import Strategy
from weft.step import StepEngine
from weft.units import format_size, format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.hardware import Platform
    from weft.models.stacks import Stack
    from weft.planner.buckets import Bucketed
    from weft.planner.candidates import CollectiveGroup
    from weft.step import HostModel, StepGraph
    from weft.timeline import Timeline

MODES = ("heuristic", "search")
_WORTH = 0.995  # of the step that other buckets must leave to be worth a setting


@dataclass(frozen=True)
class PlannedStep:
    """A plan with the timelines of the step as torch runs it and as planned, both predicted."""

    plan: Plan
    baseline: Timeline
    planned: Timeline


def plan(graph: StepGraph, platform: Platform, **options: Any) -> Plan:
    """Choose a strategy for each collective of a step on a platform, as ``plan_step`` does."""
    return plan_step(graph, platform, **options).plan


def plan_step(
    graph: StepGraph,
    platform: Platform,
    *,
    mode: str = "search",
    limits: Limits = Limits(),  # noqa: B008 - frozen
    host: HostModel | None = None,
    anyway: bool = False,
    software: Stack | None = None,
) -> PlannedStep:
    """Choose a strategy for each collective of a step; return the plan with its timelines.

    Without a plan torch hands collectives to its library, on a stream of their own: that is the
    baseline. ``heuristic`` takes for each group of collectives what shortens the step most with
    all others as they are, ``search`` goes on until no change of a group does. A step that does
    not fit into memory is refused, unless ``anyway``: then the plan says so, and nothing in it
    asks for more memory. ``software`` is what the graph was made with, for the range of the plan.
    """
    check_mode(mode)
    room = _room(graph, platform, limits, anyway=anyway)
    prices = Prices(platform, default_library(platform))
    priced = on_cores(graph, platform, prices.library)  # torch does more than generators write

    def drafted(which: StepGraph) -> DraftPlan:
        return _drafted(which, platform, prices, limits, max(0, room), host)

    base = drafted(priced)
    best, tried = _with_best_buckets(base, drafted)
    chosen = best.search.chosen(mode)
    choices = _choices(base, best, chosen, tried)
    # The planned step has the relative range of the baseline: both are made of the same prices.
    low, high, _ = step_range(base.evaluator.engine, prices, software)
    made = _plan(graph, base, best, chosen, choices, limits, mode, (low, high))
    if room < 0:
        made = replace(made, notes=(_too_large(graph, room), *made.notes))
    runs = base.search.run(base.search.base), best.search.run(chosen)
    return PlannedStep(made, *(run.timeline() for run in runs))


def search_of(graph: StepGraph, platform: Platform, *, host: HostModel | None = None) -> Search:
    """Return all candidates of a step, to be priced and chosen among."""
    prices, room = Prices(platform, default_library(platform)), _room(graph, platform, Limits())
    return _drafted(graph, platform, prices, Limits(), room, host).search


def _drafted(
    graph: StepGraph,
    platform: Platform,
    prices: Prices,
    limits: Limits,
    room: int,
    host: HostModel | None,
) -> DraftPlan:
    return drafted_step(StepEngine(graph, platform, prices, host=host), prices, limits, room)


def drafted_step(engine: StepEngine, prices: Prices, limits: Limits, room: int) -> DraftPlan:
    """List the candidates of a step that is laid out."""
    context = StrategyContext(prices.platform, prices, limits)
    evaluator = StepEvaluator(engine, prices)
    options = [_options(group, context, room) for group in groups_of(evaluator)]
    return DraftPlan(evaluator, Search(options, evaluator))


@dataclass(frozen=True)
class DraftPlan:
    """A step with the candidates of its groups; ``buckets`` where gradients are joined."""

    evaluator: StepEvaluator
    search: Search
    buckets: Bucketed | None = None

    @property
    def seconds(self) -> float:
        """Seconds of the step as torch runs it."""
        return self.search.base_seconds


def _with_best_buckets(
    base: DraftPlan, drafted: Callable[[StepGraph], DraftPlan]
) -> tuple[DraftPlan, list[tuple[Bucketed, str]]]:
    """Try other buckets of gradients; return the best draft, and why it is not another."""
    best, drafts = base, list[DraftPlan]()
    for times in TIMES:
        found = with_buckets(base.evaluator.graph, times)
        # With few buckets, four and eight times as large are the same, as are a half and a quarter.
        if found is None or (drafts and _same(drafts[-1], found)):
            continue
        drafts.append(replace(drafted(found.graph), buckets=found))
        if drafts[-1].seconds < _WORTH * best.seconds:
            best = drafts[-1]
    tried = []
    for draft in drafts:
        if draft is not best and draft.buckets is not None:
            why = f"the step is {format_time(draft.seconds - best.seconds)} longer"
            tried.append((draft.buckets, why))
    return best, tried


def _same(draft: DraftPlan, found: Bucketed) -> bool:
    """Return whether there were too few buckets to join more of them."""
    return draft.buckets is not None and draft.buckets.origin == found.origin


def _choices(
    base: DraftPlan, best: DraftPlan, chosen: list[Candidate], tried: list[tuple[Bucketed, str]]
) -> list[Choice]:
    """Write down the choices: the gain of each is what the planned step loses without it."""
    search, whole = best.search, base.seconds
    explainer = Explainer(search, best.evaluator, chosen)
    found = []
    for choice, options in zip(explainer.choices(whole), search.options, strict=True):
        others = [
            Alternative(Strategy("concurrent", bucket=buckets.nbytes), None, why)
            for buckets, why in tried
            if buckets.has(options.group)
        ]
        told = replace(choice, alternatives=(*choice.alternatives, *others))
        if best.buckets is not None and best.buckets.has(options.group):
            told = _in_buckets(told, best.buckets, 1 - best.seconds / whole)
        found.append(told)
    return found


def _in_buckets(choice: Choice, buckets: Bucketed, gain: float) -> Choice:
    ops = _origin(choice.ops, choice.step, buckets)
    why = f"buckets of {format_size(buckets.nbytes)} save {100 * gain:.1f} %; {choice.why}"
    strategy = replace(choice.strategy, bucket=buckets.nbytes)
    return replace(choice, strategy=strategy, why=why, gain=choice.gain + gain, ops=ops)


def _origin(ops: tuple[int, ...], step: int, buckets: Bucketed) -> tuple[int, ...]:
    """Return the ops that buckets were before, each once: pieces of one were the same op."""
    return tuple(dict.fromkeys(old for op in ops for old in buckets.origin[step, op]))


def _plan(
    graph: StepGraph,
    base: DraftPlan,
    best: DraftPlan,
    chosen: list[Candidate],
    choices: list[Choice],
    limits: Limits,
    mode: str,
    edges: tuple[float, float],
) -> Plan:
    evaluator = base.evaluator
    planned = best.search.seconds(chosen)
    low, high = (each / (base.seconds or 1.0) for each in edges)
    return Plan(
        workload=graph.name,
        platform=evaluator.platform.name,
        num_ranks=graph.num_ranks,
        choices=tuple(_numbered(c, best, evaluator.graph, graph) for c in choices),
        baseline=base.seconds,
        planned=planned,
        low=planned * min(1.0, low),
        high=planned * max(1.0, high),
        fingerprint=fingerprint(graph, evaluator.platform),
        budget=replace(limits, stack=_stack(evaluator.platform, limits)),
        mode=mode,
        notes=_notes(evaluator.platform, limits),
    )


def _numbered(choice: Choice, best: DraftPlan, priced: StepGraph, graph: StepGraph) -> Choice:
    """Number the ops of a choice as the workload does, not as the one that was priced."""
    # `on_cores` adds ops of torch but no collectives, so collectives correspond one to one.
    here, there = (
        [n for n, op in enumerate(each.steps[choice.step].ops) if op.collective is not None]
        for each in (priced, graph)
    )
    place = dict(zip(here, there, strict=True))
    ops = choice.ops
    if best.buckets is not None and choice.strategy.bucket is None:
        ops = _origin(ops, choice.step, best.buckets)
    ops = tuple(place[number] for number in ops)
    return replace(choice, op=ops[0], ops=ops)


def _stack(platform: Platform, limits: Limits) -> SoftwareStack:
    """Return the versions that a plan was made for; plans for CPU ranks have none."""
    device = platform.require_device()
    asked = not (device.is_core or limits.hypothetical)
    return completed_stack(limits.stack, device.vendor) if asked else SoftwareStack()


def _notes(platform: Platform, limits: Limits) -> tuple[str, ...]:
    stack = _stack(platform, limits)
    if stack.basis == "assumed":
        example = ",".join(f"{name}={version}" for name, version in stack.versions.items())
        return (f"for {stack} (assumed); name other versions with --stack {example}",)
    if platform.require_device().is_core and not platform.libraries:
        told = f"{platform.name} was not calibrated: Gloo and weft have no prices of their own here"
        return (f"{told}; run weft calibrate and use --on here",)
    return ()


def _options(group: CollectiveGroup, context: StrategyContext, room: int) -> GroupOptions:
    """List the candidates of a group; those that do not fit into memory are infeasible."""
    base, found = baseline(context, group), list[Candidate]()
    not_here: list[Alternative] = []
    for each in candidates_of(context, group):
        if isinstance(each, Alternative):
            not_here.append(each)
        # A codec needs room for what is encoded.
        elif each.memory > room:
            size, left = format_size(each.memory), format_size(max(0, room))
            not_here.append(infeasible(each.strategy, f"needs {size} more, {left} are left"))
        else:
            found.append(each)
    return GroupOptions(group, base, tuple(found), tuple(not_here))


def _too_large(graph: StepGraph, room: int) -> str:
    needed = graph.memory.total if graph.memory is not None else 0
    return (
        f"it does not fit: it needs {format_size(needed)} a rank, {format_size(-room)} more than "
        "a plan may use"
    )


def check_mode(mode: str) -> None:
    """Raise for a mode that is unknown."""
    if mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}", f"Use {' or '.join(MODES)}.")


def check_limits(limits: Limits) -> None:
    """Raise for limits that mean nothing."""
    if not limits.error >= 0:
        raise UsageError(f"--budget must be >= 0 (got {limits.error:g})")
    if limits.engines is not None and limits.engines < 0:
        raise UsageError(f"--engines must be >= 0 (got {limits.engines})")
    for codec in limits.codecs:
        error_of(codec)


def _room(graph: StepGraph, platform: Platform, limits: Limits, *, anyway: bool = False) -> int:
    """Check limits; return the bytes that a plan may use beyond what the step needs."""
    check_limits(limits)
    has = platform.require_device().memory_bytes
    allowed = has if limits.memory is None else limits.memory
    needed = graph.memory.total if graph.memory is not None else 0
    if needed > allowed and not anyway:
        raise NoPlanError(
            f"{graph.name} needs {format_size(needed)} a rank; a plan may use "
            f"{format_size(allowed)}.",
            "Try: more ranks, fsdp or tp, recompute, a smaller batch, more memory, or --anyway to "
            "plan it all the same.",
        )
    return allowed - needed
