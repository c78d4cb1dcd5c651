"""Which strategy each pair of a step should use: enumerate, price, choose, explain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import NoPlanError, UsageError
from weft.planner.choosing import Offer, heuristic, search, without_losses
from weft.planner.coded_ways import error_of
from weft.planner.cpu_ways import CpuWays
from weft.planner.explaining import choice_of
from weft.planner.gpu_ways import GpuWays
from weft.planner.pairs import pairs_of
from weft.planner.plan import Alternative, Limits, Plan, fingerprint
from weft.planner.predict import edges
from weft.planner.prices import Prices
from weft.planner.step_price import StepPricer
from weft.planner.ways import Way, refused
from weft.units import format_size
from weft.workload.meeting import meetings

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.planner.ways import Pair
    from weft.workload import HostModel, Workload

MODES = ("heuristic", "search")


def plan(
    workload: Workload,
    platform: Platform,
    *,
    mode: str = "search",
    limits: Limits = Limits(),  # noqa: B008 - frozen
    host: HostModel | None = None,
) -> Plan:
    """Choose a strategy for each collective of a step on a platform.

    Without a plan torch hands collectives to its library, on a stream of their own: that is the
    baseline. ``heuristic`` decides pair by pair from static sizes, ``search`` simulates pairs and
    decides by the whole step.
    """
    if mode not in MODES:
        raise UsageError(f"no mode is called {mode!r}", f"Use {' or '.join(MODES)}.")
    room = _room(workload, platform, limits)
    prices = Prices(platform, library=default_backend(platform))
    pricer = StepPricer(workload, platform, prices, meetings(workload), host)
    makes = CpuWays if is_cpu(platform) else GpuWays
    ways = makes(platform, prices, limits, mode == "search")
    offers = [_offer(pair, ways, room) for pair in pairs_of(pricer)]
    chosen = heuristic(offers)
    if mode == "search":
        chosen = search(offers, pricer, chosen)
    chosen = without_losses(offers, pricer, chosen)
    return _plan(workload, offers, chosen, pricer, limits, mode)


def _plan(
    workload: Workload,
    offers: list[Offer],
    chosen: list[Way],
    pricer: StepPricer,
    limits: Limits,
    mode: str,
) -> Plan:
    base = [(offer.pair, offer.base) for offer in offers]
    made = [(offer.pair, way) for offer, way in zip(offers, chosen, strict=True)]
    baseline, planned = pricer.seconds(base), pricer.seconds(made)
    choices = []
    for number, (offer, way) in enumerate(zip(offers, chosen, strict=True)):
        alone = [*base[:number], made[number], *base[number + 1 :]]
        step = baseline if way == offer.base else pricer.seconds(alone)
        choices.append(choice_of(offer, way, 1 - step / baseline if baseline else 0.0))
    low, high = edges(workload, pricer.platform, pricer.prices, pricer.host, pricer.met)
    middle = pricer.seconds(()) or 1.0
    return Plan(
        workload=workload.name,
        platform=pricer.platform.name,
        num_ranks=workload.num_ranks,
        choices=tuple(choices),
        baseline=baseline,
        planned=planned,
        low=planned * min(1.0, low / middle),
        high=planned * max(1.0, high / middle),
        fingerprint=fingerprint(workload, pricer.platform),
        budget=limits,
        mode=mode,
    )


def _offer(pair: Pair, ways: CpuWays | GpuWays, room: int) -> Offer:
    """Ask for all ways of a pair, and refuse those that do not fit."""
    base, found = ways.base(pair), list[Way]()
    not_here: list[Alternative] = []
    for way in ways.of(pair):
        if isinstance(way, Alternative):
            not_here.append(way)
        elif way.memory > room:
            size, left = format_size(way.memory), format_size(max(0, room))
            not_here.append(refused(way.strategy, f"needs {size} more, {left} are left"))
        else:
            found.append(way)
    return Offer(pair, base, tuple(found), tuple(not_here))


def is_cpu(platform: Platform) -> bool:
    """Whether a rank is a core."""
    return platform.require_device().units == 1


def default_backend(platform: Platform) -> str:
    """Name the library that torch takes by itself."""
    return "gloo" if is_cpu(platform) else "nccl"


def _room(workload: Workload, platform: Platform, limits: Limits) -> int:
    """Check limits; give the bytes that a plan may use beyond what the step needs."""
    if limits.error < 0:
        raise UsageError(f"an error of {limits.error:g} is less than none", "Use 0 or more.")
    if limits.engines is not None and limits.engines < 0:
        raise UsageError(f"{limits.engines} engines are fewer than none", "Use 0 or more.")
    for codec in limits.codecs:
        error_of(codec)
    has = platform.require_device().memory_bytes
    allowed = has if limits.memory is None else limits.memory
    needed = workload.memory.total if workload.memory is not None else 0
    if needed > allowed:
        raise NoPlanError(
            f"{workload.name} needs {format_size(needed)} a rank; a plan may use "
            f"{format_size(allowed)}.",
            "Try: more ranks, fsdp or tp, recompute, a smaller batch, or more memory.",
        )
    return allowed - needed
