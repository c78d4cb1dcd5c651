"""What a step asks of its surroundings: prices of ops alone, and the host that issues them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from weft.schedule.ir import Cost
from weft.step.host_model import HostModel

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.step.matching import MatchedCollective
    from weft.step.step_graph import Collective, Op, RankStep

SHORTEST = 1e-9  # seconds of an op that takes none: a flow has a size


class PriceSource(Protocol):
    """How long kernels and collectives take alone."""

    def kernel(self, cost: Cost) -> float:
        """Return the seconds of a kernel on an idle device."""

    def collective(self, what: Collective, ranks: tuple[int, ...]) -> float:
        """Return the seconds of a collective of ``ranks`` that have all come."""


def seconds_of(op: Op, matched: MatchedCollective | None, prices: PriceSource) -> float:
    """Return what an op takes alone: measured, or by its price."""
    if op.seconds is not None:
        return op.seconds
    if matched is not None:
        return prices.collective(matched.what, matched.ranks)
    return prices.kernel(op.cost or Cost())


def host_of(platform: Platform) -> HostModel:
    """Return the host of a platform: cores carry out an op before the next one is issued.

    Overheads that a trace of the machine showed replace the usual ones.
    """
    waits, own = platform.require_device().is_core, platform.torch
    seen = platform.recorded.host if platform.recorded is not None else {}
    if own is None and "all" in seen:
        of_all = seen["all"]
        return HostModel(
            of_all.between,
            of_all.before,
            of_all.after,
            waits=waits,
            kinds={
                name.removeprefix("aten::"): each.between + each.before + each.after
                for name, each in seen.items()
                if name != "all"
            },
        )
    if own is None:
        return HostModel(waits=waits)
    # A measured overhead is less than zero where ops of a step are cheaper than ops called one by
    # one. The host cannot issue an op before the previous one, so such an overhead counts as none.
    return HostModel(
        max(0.0, own.forward),
        before=0.0,
        after=0.0,
        collective=0.0,
        waits=waits,
        backward=max(0.0, own.backward),
        optimizer=max(0.0, own.optimizer),
    )


def queues_of(step: RankStep) -> dict[str, str]:
    """Return the queue of each stream of a step, numbered as they come: the first is stream0.

    The k-th kernel of a queue is the k-th op of its stream.
    """
    streams = dict.fromkeys(op.stream for op in step.ops if op.kind != "host")
    return {name: f"stream{number}" for number, name in enumerate(streams)}
