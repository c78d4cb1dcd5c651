"""Which strategy each pair of a step should use: enumerate, price, choose, explain."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.errors import UsageError
from weft.planner.plan import Alternative, Choice, Limits, Plan, fingerprint
from weft.planner.predict import predict
from weft.planner.prices import Prices
from weft.units import format_size, format_time
from weft.workload.meeting import meetings
from weft.workload.walk import walk

if TYPE_CHECKING:
    from weft.cost.price import Price
    from weft.hardware import Platform
    from weft.workload import Collective, Workload
    from weft.workload.meeting import Meeting

MODES = ("heuristic", "search")


def plan(
    workload: Workload,
    platform: Platform,
    *,
    mode: str = "heuristic",
    limits: Limits = Limits(),  # noqa: B008 - frozen
) -> Plan:
    """Choose a strategy for each collective of a step on a platform."""
    if mode not in MODES:
        raise UsageError(f"no mode is called {mode!r}", f"Use {' or '.join(MODES)}.")
    backends = {name: Prices(platform, library=name) for name in backends_on(platform)}
    default = next(iter(backends))
    base = predict(workload, platform, prices=backends[default], anyway=True)
    chosen, choices = _Mixed(backends, default), []
    for number, (what, meeting, ops) in enumerate(_kinds(workload)):
        found = {name: p.collective_price(what, meeting.ranks) for name, p in backends.items()}
        best = min(found, key=lambda name: found[name].seconds)
        chosen.backend[what] = best
        alone = _Mixed(backends, default, {what: best})
        step = max(walk(workload, platform, alone))
        others = tuple(
            Alternative("concurrent", {"backend": name}, each.seconds, f"{best} is faster")
            for name, each in found.items()
            if name != best
        )
        choices.append(
            Choice(
                pair=f"{what.kind} {format_size(what.nbytes)} #{number}",
                op=ops[0],
                collective=what,
                strategy="concurrent",
                settings={"backend": best},
                seconds=found[best].seconds,
                low=found[best].low,
                high=found[best].high,
                gain=1 - step / base.seconds,
                why=f"{best} takes {format_time(found[best].seconds)}",
                alternatives=others,
                ops=tuple(ops),
            )
        )
    planned = predict(workload, platform, prices=chosen, anyway=True)
    return Plan(
        workload=workload.name,
        platform=platform.name,
        num_ranks=workload.num_ranks,
        choices=tuple(choices),
        baseline=base.seconds,
        planned=planned.seconds,
        low=planned.low,
        high=planned.high,
        fingerprint=fingerprint(workload, platform),
        budget=limits,
        mode=mode,
    )


def backends_on(platform: Platform) -> tuple[str, ...]:
    """Name who can carry out collectives on a platform; the first is what torch takes by itself."""
    return ("gloo", "weft") if platform.require_device().units == 1 else ("nccl",)


class _Mixed(Prices):
    """Prices where each collective has a backend of its own."""

    def __init__(
        self,
        backends: dict[str, Prices],
        default: str,
        backend: dict[Collective, str] | None = None,
    ) -> None:
        super().__init__(backends[default].platform, default)
        self.backends, self.default, self.backend = backends, default, backend or {}

    def collective_price(self, what: Collective, ranks: tuple[int, ...]) -> Price:
        name = self.backend.get(replace(what, splits=()), self.default)
        return self.backends[name].collective_price(what, ranks)


def _kinds(workload: Workload) -> list[tuple[Collective, Meeting, list[int]]]:
    """Collectives of a step that are equal are planned once."""
    found: dict[Collective, tuple[Meeting, list[int]]] = {}
    for (_, number), meeting in meetings(workload).items():
        ops = found.setdefault(replace(meeting.what, splits=()), (meeting, []))[1]
        ops.append(number)
    return [(what, meeting, ops) for what, (meeting, ops) in found.items()]
