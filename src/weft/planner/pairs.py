"""The pairs of a step: each collective with the computation that runs beside it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.cost import is_gemm
from weft.errors import UnknownNameError
from weft.hardware.dtypes import recipe_of
from weft.planner.beside import is_mover
from weft.planner.lookup_ops import lookups_at
from weft.planner.ways import Pair

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.planner.step_price import Overlap, Place, StepPricer
    from weft.schedule import Cost
    from weft.workload import Collective, Op

_LITTLE = 0.02  # of what runs beside a collective is nothing
_TABLES = ("embedding", "embedding-backward")
MAKERS = ("gemm", "bmm")  # of what can be sent slice by slice, beside lookups


def pairs_of(pricer: StepPricer) -> tuple[Pair, ...]:
    """Find what runs beside each collective as the step is written; equal ones are one pair.

    Those that other products make are other pairs: how much of them slices could hide differs.
    """
    overlap = pricer.overlap(pricer.walk(()))
    members: dict[tuple[Collective, str, str], list[Place]] = defaultdict(list)
    ranks: dict[Collective, tuple[int, ...]] = {}
    for place, meeting in pricer.met.items():
        what = replace(meeting.what, splits=())
        members[what, _op(pricer, place).phase, _product(pricer, place)].append(place)
        ranks.setdefault(what, meeting.ranks)
    return tuple(
        _pair(pricer, what, ranks[what], places, overlap)
        for (what, _, _), places in members.items()
        if len(ranks[what]) > 1
    )


def _pair(
    pricer: StepPricer,
    what: Collective,
    ranks: tuple[int, ...],
    places: Sequence[Place],
    overlap: Overlap,
) -> Pair:
    device = pricer.platform.require_device()
    by_memory, total = 0.0, 0.0
    names: dict[str, float] = defaultdict(float)
    for place in places:
        ops = pricer.workload.steps[place[0]].ops
        for number, seconds in overlap.beside.get(place, {}).items():
            total += seconds
            names[ops[number].name] += seconds
            by_memory += seconds * is_mover(ops[number], device)
    shares = [overlap.share.get(place, 0.0) for place in places]
    makers, exchanged = _makers(pricer, places), what.kind == "all_to_all"
    return Pair(
        what,
        ranks,
        tuple(places),
        hidden=sum(shares) / len(shares),
        by_memory=by_memory / total if total else 0.5,
        phase=_op(pricer, places[0]).phase,
        makers=makers,
        made_by=_op(pricer, makers[0]).name if makers else "",
        making=max((pricer.own[maker] for maker in makers), default=0.0),
        beside=max(names, key=lambda name: names[name], default=""),
        gemm=_only_gemm(pricer, places, overlap),
        looks_up=exchanged and any(_touches_tables(pricer, place) for place in places),
        lookups=lookups_at(pricer.workload, pricer.own, places) if exchanged else (),
    )


def _only_gemm(pricer: StepPricer, places: Sequence[Place], overlap: Overlap) -> Cost | None:
    """Give the product beside each of equal collectives, where it is all that runs beside them."""
    found: Cost | None = None
    for place in places:
        beside = overlap.beside.get(place, {})
        total = sum(beside.values())
        main = [n for n, seconds in beside.items() if seconds > _LITTLE * total]
        if len(main) != 1:
            return None
        cost = _op(pricer, (place[0], main[0])).cost
        if cost is None or cost.family != "gemm" or not is_gemm(cost) or found not in (None, cost):
            return None
        found = cost
    return found


def _touches_tables(pricer: StepPricer, place: Place) -> bool:
    """Whether lookups make what a collective moves, or take it."""
    ops, number = pricer.workload.steps[place[0]].ops, place[1]
    near = [ops[n] for n in ops[number].after]
    near += [op for op in ops[number + 1 :] if number in op.after]
    return any(op.cost is not None and op.cost.family in _TABLES for op in near)


def _op(pricer: StepPricer, place: Place) -> Op:
    return pricer.workload.steps[place[0]].ops[place[1]]


def _makes(cost: Cost, what: Collective | None) -> bool:
    """Whether a kernel makes all that a collective moves: a bucket of gradients has many makers."""
    if cost.family == "embedding":
        return True
    if cost.family not in MAKERS or what is None or len(cost.shape) < 3:
        return False
    rows, columns = cost.shape[-3], cost.shape[-2]
    batch = cost.shape[0] if len(cost.shape) == 4 else 1
    try:
        item = recipe_of(cost.dtype or "fp32").output
    except UnknownNameError:  # measured, in a dtype that no model knows: four bytes, as most
        item = 4.0
    return abs(batch * rows * columns * item - what.nbytes) <= 0.01 * what.nbytes


def _product(pricer: StepPricer, place: Place) -> str:
    """Name the product that makes all that a collective moves, where one does."""
    ops = pricer.workload.steps[place[0]].ops
    before = [ops[m] for m in ops[place[1]].after if ops[m].kind == "kernel"]
    cost = before[-1].cost if before else None
    if cost is None or cost.family not in MAKERS or not _makes(cost, ops[place[1]].collective):
        return ""
    return before[-1].name


def _makers(pricer: StepPricer, places: Sequence[Place]) -> tuple[Place, ...]:
    """Find the kernels that make its input; none where one of them cannot send slices.

    Ranks that have nothing to make, as those without tables, are no obstacle.
    """
    found = []
    for c, n in places:
        ops = pricer.workload.steps[c].ops
        before = [m for m in ops[n].after if ops[m].kind == "kernel"]
        if not before:
            continue
        cost = ops[max(before)].cost
        if cost is None or not _makes(cost, ops[n].collective):
            return ()
        found.append((c, max(before)))
    return tuple(found)
