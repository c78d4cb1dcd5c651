"""What may be changed in a recorded step, each with what it rests on.

A change edits the workload of a replay, or carries its collectives out by a strategy of the
planner, and runs it. Where an assumption has two ends, both are run too. Names with a number take
any: ``links*2``, ``buckets/4``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from weft.errors import UnknownNameError, UsageError, nearest
from weft.planner.buckets import with_buckets
from weft.planner.plan import Limits
from weft.schedule.strategy import STRATEGIES
from weft.schedule.values import Group
from weft.step import Op, RankStep, StepGraph, StepRun
from weft.trace.recorded.overheads import USUAL_GAP
from weft.trace.recorded.recorded_step import INPUT, LEAST, MARK
from weft.units import format_time
from weft.whatif.model import ReplayModel

_BUCKETS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")  # that go in one message


@dataclass(frozen=True, slots=True)
class Change:
    """A changed step with what it rests on; ``ends`` are runs at the ends of its assumption.

    ``against`` is the unchanged step, where that is not the model's: ops with the durations that
    were recorded, contention included.
    """

    name: str
    why: str
    run: StepRun
    ends: tuple[StepRun, ...] = ()
    against: StepRun | None = None


class Scaling(NamedTuple):
    """What is made larger or smaller, and how many times."""

    what: str
    times: float


def scaling_of(name: str) -> Scaling | None:
    """Read a name such as ``links*2``; None for changes without a number."""
    found = re.fullmatch(r"(links|buckets|ranks)([*/])(\d+(?:\.\d+)?)", name)
    if found is None:
        if name not in (*_CODECS, *STRATEGIES, *_NAMED):
            raise UnknownNameError(f"unknown change {name!r}", nearest(name, NAMES))
        return None
    number = float(found[3])
    if not 0 < number < inf:
        raise UsageError(
            f"{name}: the factor must be > 0 (got {found[3]})", f"Use {found[1]}{found[2]}2, say."
        )
    return Scaling(found[1], number if found[2] == "*" else 1 / number)


def change(model: ReplayModel, name: str) -> Change | None:
    """Run a change by its name; None where there is nothing that it would change."""
    scaling = scaling_of(name)
    if not model.comms and name not in _WITHOUT_COLLECTIVES:
        return None
    if scaling is not None:
        found = _SCALED[scaling.what](model, name, scaling.times)
        relieves = scaling.what == "links" and scaling.times >= 1
    elif name in _NAMED:
        found, relieves = _NAMED[name](model, name), True
    else:
        return _strategy(model, name)
    return not_longer(model, found) if found is not None and relieves else found


def not_longer(model: ReplayModel, relief: Change) -> Change:
    """Return a change that only takes time away, as one by which the step does not get longer.

    Kernels that are ready sooner may take units that another one got, and lengthen the step by the
    order alone (Graham's anomaly). Who comes first where both are ready is not recorded, so nothing
    is taken as saved, and the longer step is an end of the range.
    """
    longer = relief.run.seconds / model.run.seconds - 1
    if longer <= 0:
        return relief
    why = f"{relief.why}; the step is on an edge: kernels that take units in another order could "
    why += f"make it {100 * longer:.1f} % longer"
    return replace(relief, why=why, run=model.run, ends=(*relief.ends, relief.run))


def _strategy(model: ReplayModel, name: str) -> Change | None:
    """Carry out by a strategy every collective that can be, as the planner would."""
    strategy, codec = _CODECS.get(name, (name, "pack"))
    if strategy == "concurrent":
        return Change(name, "as recorded", model.run)
    # A what-if asks what a strategy would be worth, whether or not a library offers it here.
    draft = model.draft(Limits(error=1.0, codecs=(codec,), hypothetical=True))
    chosen, there = draft.search.by_strategy(strategy)
    if not there:
        return None
    all_moved = model.run_moved(draft, chosen)
    members = sum(
        len(options.group.members)
        for options, one in zip(draft.search.options, chosen, strict=True)
        if one.strategy.name == strategy
    )
    count = sum(op.collective is not None for op in model.engine.graph.ops())
    why = f"on {model.prices.platform.name}: {_share(members, count)} collectives use "
    why += codec if STRATEGIES[strategy].coded else strategy
    return Change(name, why, draft.search.run(chosen), () if all_moved is None else (all_moved,))


def _share(part: int, whole: int) -> str:
    return "all" if part == whole else f"{100 * part / whole:.0f} % of the"


def _edited(model: ReplayModel, name: str, why: str, edit: Callable[[Op], Op]) -> Change:
    """Edit every op; if only one rank was seen, all of a collective may have been moving."""
    run = model.engine_of(model.edited(edit)).run()
    moved = model.if_all_moved
    ends = () if moved is None else (model.engine_of(model.edited(edit, moved)).run(),)
    return Change(name, why, run, ends)


def _moving(model: ReplayModel, name: str, why: str, share: Callable[[Op], float]) -> Change:
    """Multiply how long bytes move; waiting stays."""

    def edit(op: Op) -> Op:
        if op.collective is None or op.seconds is None:
            return op
        return replace(op, seconds=op.seconds * share(op))

    return _edited(model, name, why, edit)


def _links(model: ReplayModel, name: str, times: float) -> Change:
    def share(op: Op) -> float:
        assert op.collective is not None
        whole, least = model.price(op.collective), model.price(replace(op.collective, nbytes=1))
        # The price of one byte is latency, which faster links do not change.
        floor = min(1.0, least / whole) if whole and least else 0.0
        return floor + (1 - floor) / times

    why = f"links of {times:g} times the rate; latency and waiting stay"
    return _moving(model, name, why, share)


def _ranks(model: ReplayModel, name: str, times: float) -> Change:
    """Scale groups; each rank keeps its batch and its bytes (weak scaling)."""

    def share(op: Op) -> float:
        assert op.collective is not None
        count = model.graph.group(op.collective.group).size
        now = model.price(op.collective)
        # The ratio of two prices carries the recorded time to other ranks, so errors of the model
        # cancel.
        then = model.price(op.collective, max(1, round(count * times)))
        return then / now if now and then else 1.0

    why = f"groups of {times:g} times the ranks, the same work and bytes for each; waiting stays"
    return _moving(model, name, why, share)


def _buckets(model: ReplayModel, name: str, times: float) -> Change | None:
    """Merge or split collectives of one kind that follow each other on a stream."""

    def chosen(step: RankStep) -> frozenset[int]:
        return frozenset(
            number
            for number, op in enumerate(step.ops)
            if op.collective is not None and op.collective.kind in _BUCKETS
        )

    made = with_buckets(model.graph, times, chosen, model.price)
    if made is None:
        return None
    if times >= 1:
        why = f"every {round(times)} of a kind go as one behind the last; their waiting adds up"
    else:
        why = f"each in {round(1 / times)} pieces, ready one after the other since the one before"
    return Change(name, why, model.engine_of(made.graph).run())


def _no_waiting(model: ReplayModel, name: str) -> Change:
    why = "every other rank comes in time: collectives take as long as bytes move"
    run = model.engine_of(_unmet(model.edited(lambda op: replace(op, waiting=0.0)))).run()
    return Change(name, why, run)


def _no_moving(model: ReplayModel, name: str) -> Change:
    why = "bytes move in no time; waiting for other ranks stays: a bound"
    return _edited(model, name, why, _without_moving)


def _no_communication(model: ReplayModel, name: str) -> Change:
    edited = model.edited(lambda op: replace(_without_moving(op), waiting=0.0))
    why = "collectives take no time and nobody waits for another: a bound"
    return Change(name, why, model.engine_of(_unmet(edited)).run())


def _without_moving(op: Op) -> Op:
    return op if op.collective is None else replace(op, seconds=0.0)


def _unmet(graph: StepGraph) -> StepGraph:
    """Return the graph with a group of its own for every rank, so that no rank waits."""
    if len(graph.steps) < 2:
        return graph
    groups, steps = dict(graph.groups), []
    for number, step in enumerate(graph.steps):
        name = f"rank {number}"
        # Ranks that share no group never meet, so the simulator lets none wait.
        groups[name] = Group(1, ranks=(number,))
        ops = (
            op if op.collective is None
            else replace(op, collective=replace(op.collective, group=name))
            for op in step.ops
        )  # fmt: skip
        steps.append(replace(step, ops=tuple(ops)))
    return replace(graph, steps=tuple(steps), groups=groups)


def _no_slowdown(model: ReplayModel, name: str) -> Change | None:
    run = model.engine.run(pressure=0)
    # Nothing that runs at once slows anything: there is no such change.
    if run.seconds >= model.run.seconds * (1 - 1e-6):
        return None
    return Change(name, "ops that run at once take what they take alone: a bound", run)


def _no_host(model: ReplayModel, name: str) -> Change:
    def edit(op: Op) -> Op:
        return replace(op, host=LEAST if op.name == MARK and op.kind == "host" else 0.0)

    why = "the host takes no time, as with one CUDA graph for the step: a bound"
    return Change(name, why, model.engine_of(model.edited(edit)).run())


def _no_launching(model: ReplayModel, name: str) -> Change:
    def edit(op: Op) -> Op:
        around = op.kind == "host" and op.name in (MARK, INPUT)
        return op if around else replace(op, host=0.0)

    why = "launching takes no time, as with one CUDA graph for the step; its input is prepared as "
    why += "it was"
    return Change(name, why, model.engine_of(model.edited(edit)).run())


def _no_input(model: ReplayModel, name: str) -> Change | None:
    if all(rank.overheads.head + rank.overheads.tail <= 0 for rank in model.ranks):
        return None

    def edit(op: Op) -> Op:
        around = op.kind == "host" and op.name in (MARK, INPUT)
        return replace(op, host=LEAST if op.name == MARK else 0.0) if around else op

    why = "the host takes no time from the last call of a step to the first of the next: its "
    why += "input is ready"
    return Change(name, why, model.engine_of(model.edited(edit)).run())


def _no_sync(model: ReplayModel, name: str) -> Change | None:
    def waits(op: Op) -> bool:
        return op.blocking or (op.kind == "host" and bool(op.after))

    if not any(waits(op) for op in model.graph.ops()):
        return None

    def edit(op: Op) -> Op:
        return replace(op, blocking=False, after=() if op.kind == "host" else op.after)

    run = model.engine_of(model.edited(edit)).run()
    return Change(name, "the host never waits for the device", run)


def _no_gaps(model: ReplayModel, name: str) -> Change | None:
    gaps = [rank.overheads.gap for rank in model.ranks]
    if max(gaps) <= USUAL_GAP and not any(op.pause for op in model.graph.ops()):
        return None
    less = max(0.0, max(gaps) - USUAL_GAP)
    ranks = tuple(
        replace(rank, overheads=replace(rank.overheads, gap=min(rank.overheads.gap, USUAL_GAP)))
        for rank in model.ranks
    )

    def edit(op: Op) -> Op:
        seconds = None if op.seconds is None else max(0.0, op.seconds - less)
        return replace(op, pause=0.0, seconds=seconds)

    run = replace(model, ranks=ranks).engine_of(model.edited(edit)).run()
    why = f"kernels that are ready follow each other within {format_time(USUAL_GAP)}: a bound"
    return Change(name, why, run)


_SCALED: dict[str, Callable[[ReplayModel, str, float], Change | None]] = {
    "links": _links,
    "buckets": _buckets,
    "ranks": _ranks,
}
_NAMED: dict[str, Callable[[ReplayModel, str], Change | None]] = {
    "no-waiting": _no_waiting,
    "no-moving": _no_moving,
    "no-communication": _no_communication,
    "no-slowdown": _no_slowdown,
    "no-launching": _no_launching,
    "no-input": _no_input,
    "no-sync": _no_sync,
    "no-gaps": _no_gaps,
    "no-host": _no_host,
}
_CODECS = {"compressed": ("compressed", "pack"), "compressed-int8": ("compressed", "int8")}
_WITHOUT_COLLECTIVES = ("no-launching", "no-input", "no-sync", "no-gaps", "no-host")
NAMES = (
    *(name for name in STRATEGIES if name not in _CODECS),
    *_CODECS,
    *("links*2", "links/2", "ranks*2", "buckets*2", "buckets/2"),
    *_NAMED,
)
