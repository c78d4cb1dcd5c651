"""Which strategy each pair of a step should use: enumerate, price, choose, explain."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from weft.errors import NoPlanError, UsageError
from weft.planner.buckets import TIMES, with_buckets
from weft.planner.choosing import Offer, heuristic, search, without_losses
from weft.planner.coded_ways import error_of
from weft.planner.cpu_ways import CpuWays
from weft.planner.explaining import choice_of
from weft.planner.gpu_ways import GpuWays
from weft.planner.on_cores import on_cores
from weft.planner.pairs import pairs_of
from weft.planner.plan import Alternative, Choice, Limits, Plan, fingerprint
from weft.planner.predict import step_range
from weft.planner.prices import Prices, default_library
from weft.planner.step_price import StepPricer
from weft.planner.ways import Way, refused
from weft.units import format_size, format_time
from weft.workload.meeting import meetings

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.hardware import Platform
    from weft.planner.buckets import Bucketed
    from weft.planner.ways import Pair
    from weft.workload import HostModel, Workload

MODES = ("heuristic", "search")
_WORTH = 0.995  # of the step that larger buckets must leave to be worth a setting


def plan(
    workload: Workload,
    platform: Platform,
    *,
    mode: str = "search",
    limits: Limits = Limits(),  # noqa: B008 - frozen
    host: HostModel | None = None,
    anyway: bool = False,
) -> Plan:
    """Choose a strategy for each collective of a step on a platform.

    Without a plan torch hands collectives to its library, on a stream of their own: that is the
    baseline. ``heuristic`` decides pair by pair from static sizes, ``search`` simulates pairs and
    decides by the whole step. A step that does not fit into memory is refused, unless ``anyway``:
    then the plan says so, and nothing in it asks for more memory.
    """
    if mode not in MODES:
        raise UsageError(f"no mode is called {mode!r}", f"Use {' or '.join(MODES)}.")
    room = _room(workload, platform, limits, anyway=anyway)
    prices = Prices(platform, default_library(platform))
    priced = on_cores(workload, platform, prices.library)  # torch does more than generators write
    ways: CpuWays | GpuWays = GpuWays(platform, prices, limits, simulated=mode == "search")
    if platform.require_device().is_core:
        ways = CpuWays(platform, prices, limits)

    def drafted(which: Workload) -> _Draft:
        pricer = StepPricer(which, platform, prices, meetings(which), host)
        return _Draft(pricer, [_offer(pair, ways, max(0, room)) for pair in pairs_of(pricer)])

    base = drafted(priced)
    best, tried = _with_best_buckets(base, drafted)
    chosen = heuristic(best.offers)
    if mode == "search":
        chosen = search(best.offers, best.pricer, chosen)
    chosen = without_losses(best.offers, best.pricer, chosen)
    choices = _choices(base, best, chosen, tried)
    made = _plan(workload, base, best, chosen, choices, limits, mode)
    return made if room >= 0 else replace(made, notes=(_too_large(workload, room), *made.notes))


@dataclass(frozen=True)
class _Draft:
    """A step with its pairs and their ways; ``buckets`` where gradients are joined."""

    pricer: StepPricer
    offers: list[Offer]
    buckets: Bucketed | None = None

    @property
    def base(self) -> list[tuple[Pair, Way]]:
        return [(offer.pair, offer.base) for offer in self.offers]

    @property
    def seconds(self) -> float:
        return self.pricer.seconds(self.base)


def _with_best_buckets(
    base: _Draft, drafted: Callable[[Workload], _Draft]
) -> tuple[_Draft, list[tuple[Bucketed, str]]]:
    """Try larger buckets of gradients; give the best draft, and why it is not another."""
    best, drafts = base, list[_Draft]()
    for times in TIMES:
        found = with_buckets(base.pricer.workload, times)
        if found is None or (drafts and _same(drafts[-1], found)):
            break
        drafts.append(replace(drafted(found.workload), buckets=found))
        if drafts[-1].seconds < _WORTH * best.seconds:
            best = drafts[-1]
    tried = []
    for draft in drafts:
        if draft is not best and draft.buckets is not None:
            why = f"the step takes {format_time(draft.seconds)}, not {format_time(best.seconds)}"
            tried.append((draft.buckets, why))
    return best, tried


def _same(draft: _Draft, found: Bucketed) -> bool:
    """Whether there were too few buckets to join more of them."""
    return draft.buckets is not None and draft.buckets.origin == found.origin


def _choices(
    base: _Draft, best: _Draft, chosen: list[Way], tried: list[tuple[Bucketed, str]]
) -> list[Choice]:
    """Write down the choices: the gain of each is that of the step with it alone."""
    whole, made = base.seconds, best.base
    found = []
    for number, (offer, way) in enumerate(zip(best.offers, chosen, strict=True)):
        alone = [*made[:number], (offer.pair, way), *made[number + 1 :]]
        saved = best.seconds if way == offer.base else best.pricer.seconds(alone)
        choice = choice_of(offer, way, (best.seconds - saved) / whole if whole else 0.0)
        others = [
            Alternative("concurrent", {"bucket": buckets.nbytes}, None, why)
            for buckets, why in tried
            if buckets.has(offer.pair)
        ]
        choice = replace(choice, alternatives=(*choice.alternatives, *others))
        if best.buckets is not None and best.buckets.has(offer.pair):
            choice = _in_buckets(choice, best.buckets, 1 - best.seconds / whole)
        found.append(choice)
    return found


def _in_buckets(choice: Choice, buckets: Bucketed, gain: float) -> Choice:
    ops = tuple(old for op in choice.ops for old in buckets.origin[choice.step, op])
    why = f"buckets of {format_size(buckets.nbytes)} save {100 * gain:.1f} %; {choice.why}"
    settings = {**choice.settings, "bucket": buckets.nbytes}
    return replace(choice, settings=settings, why=why, gain=choice.gain + gain, ops=ops)


def _plan(
    workload: Workload,
    base: _Draft,
    best: _Draft,
    chosen: list[Way],
    choices: list[Choice],
    limits: Limits,
    mode: str,
) -> Plan:
    pricer = base.pricer
    ways = [(offer.pair, way) for offer, way in zip(best.offers, chosen, strict=True)]
    planned = best.pricer.seconds(ways)
    asked = pricer.workload, pricer.platform, pricer.prices, pricer.met, pricer.host
    low, high = (each / (base.seconds or 1.0) for each in step_range(*asked))
    return Plan(
        workload=workload.name,
        platform=pricer.platform.name,
        num_ranks=workload.num_ranks,
        choices=tuple(_numbered(c, best, pricer.workload, workload) for c in choices),
        baseline=base.seconds,
        planned=planned,
        low=planned * min(1.0, low),
        high=planned * max(1.0, high),
        fingerprint=fingerprint(workload, pricer.platform),
        budget=limits,
        mode=mode,
        notes=_notes(pricer.platform),
    )


def _numbered(choice: Choice, best: _Draft, priced: Workload, workload: Workload) -> Choice:
    """Number the ops of a choice as the workload does, not as the one that was priced."""
    here, there = (
        [n for n, op in enumerate(each.steps[choice.step].ops) if op.collective is not None]
        for each in (priced, workload)
    )
    place = dict(zip(here, there, strict=True))
    ops = choice.ops
    if best.buckets is not None and "bucket" not in choice.settings:
        ops = tuple(old for op in ops for old in best.buckets.origin[choice.step, op])
    ops = tuple(place[number] for number in ops)
    return replace(choice, op=ops[0], ops=ops)


def _notes(platform: Platform) -> tuple[str, ...]:
    if platform.require_device().is_core and not platform.libraries:
        told = f"{platform.name} was not calibrated: Gloo and weft have no prices of their own here"
        return (f"{told}; run weft calibrate and use --on here",)
    return ()


def _offer(pair: Pair, ways: CpuWays | GpuWays, room: int) -> Offer:
    """Ask for all ways of a pair, and refuse those that do not fit."""
    base, found = ways.base(pair), list[Way]()
    not_here: list[Alternative] = []
    for way in ways.of(pair):
        if isinstance(way, Alternative):
            not_here.append(way)
        elif way.memory > room:
            size, left = format_size(way.memory), format_size(room)
            not_here.append(refused(way.strategy, f"needs {size} more, {left} are left"))
        else:
            found.append(way)
    return Offer(pair, base, tuple(found), tuple(not_here))


def _too_large(workload: Workload, room: int) -> str:
    needed = workload.memory.total if workload.memory is not None else 0
    return (
        f"it does not fit: it needs {format_size(needed)} a rank, {format_size(-room)} more than "
        "a plan may use"
    )


def _room(workload: Workload, platform: Platform, limits: Limits, *, anyway: bool = False) -> int:
    """Check limits; give the bytes that a plan may use beyond what the step needs."""
    if not limits.error >= 0:
        raise UsageError(f"an error of {limits.error:g} is less than none", "Use 0 or more.")
    if limits.engines is not None and limits.engines < 0:
        raise UsageError(f"{limits.engines} engines are fewer than none", "Use 0 or more.")
    for codec in limits.codecs:
        error_of(codec)
    has = platform.require_device().memory_bytes
    allowed = has if limits.memory is None else limits.memory
    needed = workload.memory.total if workload.memory is not None else 0
    if needed > allowed and not anyway:
        raise NoPlanError(
            f"{workload.name} needs {format_size(needed)} a rank; a plan may use "
            f"{format_size(allowed)}.",
            "Try: more ranks, fsdp or tp, recompute, a smaller batch, more memory, or --anyway to "
            "plan it all the same.",
        )
    return allowed - needed
