"""The collectives of a step in groups of equals, with the computation that overlaps them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.errors import UnknownNameError
from weft.hardware.dtypes import scheme_of
from weft.planner.candidates import CollectiveGroup
from weft.planner.lookup_ops import lookups_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.planner.candidates import Place
    from weft.planner.evaluation import Overlap, StepEvaluator
    from weft.schedule import Cost
    from weft.step import Collective

_TABLES = ("embedding", "embedding-backward")
PRODUCERS = ("gemm", "bmm")  # of what can be sent slice by slice, besides lookups


def groups_of(evaluator: StepEvaluator) -> tuple[CollectiveGroup, ...]:
    """Group equal collectives, with the kernels that overlap them when nothing is changed.

    Collectives whose inputs other products compute are other groups: how much of them could be
    hidden slice by slice differs.
    """
    overlap = evaluator.overlap(evaluator.run())
    members: dict[tuple[Collective, str, str], list[Place]] = defaultdict(list)
    slowest: dict[Collective, Place] = {}  # the one that is priced for its group
    for place, matched in evaluator.engine.met.items():
        # Uneven splits and peers differ from rank to rank; a strategy is chosen for all of them.
        what = replace(matched.what, splits=(), peer=None)
        key = what, evaluator.engine.op(place).phase, _product(evaluator, place)
        members[key].append(place)
        if what not in slowest or evaluator.own[place] > evaluator.own[slowest[what]]:
            slowest[what] = place
    return tuple(
        _group(evaluator, what, slowest[what], places, overlap)
        for (what, _, _), places in members.items()
        # A barrier moves nothing, and a group of one rank does nothing.
        if what.kind != "barrier" and len(evaluator.engine.met[slowest[what]].ranks) > 1
    )


def _group(
    evaluator: StepEvaluator,
    what: Collective,
    slowest: Place,
    places: Sequence[Place],
    overlap: Overlap,
) -> CollectiveGroup:
    names: dict[str, float] = defaultdict(float)
    for place in places:
        ops = evaluator.graph.steps[place[0]].ops
        for number, seconds in overlap.kernels.get(place, {}).items():
            names[ops[number].name] += seconds
    shares = [overlap.share.get(place, 0.0) for place in places]
    producers, exchanged = _producers(evaluator, places), what.kind == "all_to_all"
    return CollectiveGroup(
        what,
        evaluator.engine.met[slowest].ranks,
        tuple(places),
        hidden=sum(shares) / len(shares),
        alone=evaluator.prices.collective(what, evaluator.engine.met[slowest].ranks),
        phase=evaluator.engine.op(places[0]).phase,
        producers=producers,
        produced_by=evaluator.engine.op(producers[0]).name if producers else "",
        producer_seconds=max((evaluator.own[each] for each in producers), default=0.0),
        overlapped=max(names, key=lambda name: names[name], default=""),
        looks_up=exchanged and any(_touches_tables(evaluator, place) for place in places),
        lookups=lookups_at(evaluator.graph, places) if exchanged else (),
    )


def _touches_tables(evaluator: StepEvaluator, place: Place) -> bool:
    """Return whether lookups produce what a collective moves, or consume it."""
    ops, number = evaluator.graph.steps[place[0]].ops, place[1]
    near = [ops[n] for n in ops[number].after]
    near += [op for op in ops[number + 1 :] if number in op.after]
    return any(op.cost is not None and op.cost.family in _TABLES for op in near)


def _produces(cost: Cost, what: Collective | None) -> bool:
    """Return whether a kernel produces all that a collective moves; buckets have many producers."""
    if cost.family == "embedding":
        return True
    if cost.family not in PRODUCERS or what is None or len(cost.shape) < 3:
        return False
    rows, columns = cost.shape[-3], cost.shape[-2]
    batch = cost.shape[0] if len(cost.shape) == 4 else 1
    try:
        item = scheme_of(cost.dtype or "fp32").output
    except UnknownNameError:  # measured, in a dtype that no model knows: four bytes, as most
        item = 4.0
    return abs(batch * rows * columns * item - what.nbytes) <= 0.01 * what.nbytes


def _product(evaluator: StepEvaluator, place: Place) -> str:
    """Return the name of the product that produces all that a collective moves, if one does."""
    ops = evaluator.graph.steps[place[0]].ops
    before = [ops[m] for m in ops[place[1]].after if ops[m].kind == "kernel"]
    cost = before[-1].cost if before else None
    if (
        cost is None
        or cost.family not in PRODUCERS
        or not _produces(cost, ops[place[1]].collective)
    ):
        return ""
    return before[-1].name


def _producers(evaluator: StepEvaluator, places: Sequence[Place]) -> tuple[Place, ...]:
    """Return the kernels that produce the input; empty if one of them cannot send slices.

    Ranks without such a kernel, as those without tables, are skipped.
    """
    found = []
    for c, n in places:
        ops = evaluator.graph.steps[c].ops
        before = [m for m in ops[n].after if ops[m].kind == "kernel"]
        if not before:
            continue
        cost = ops[max(before)].cost
        if cost is None or not _produces(cost, ops[n].collective):
            return ()
        found.append((c, max(before)))
    return tuple(found)
