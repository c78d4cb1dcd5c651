"""What strategies ask of their surroundings: the platform, prices, and the limits of a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from weft.hardware.software_stack import SoftwareStack, completed_stack
from weft.planner.prices import Prices, seconds_by, simulated_price

if TYPE_CHECKING:
    from weft.cost.price import Price
    from weft.hardware import Device, Platform
    from weft.planner.candidates import CollectiveGroup
    from weft.planner.plan import Limits

ONE_CORE = "a rank has one core: there are no units to share out"


@dataclass(frozen=True)
class StrategyContext:
    """One platform with its prices, and what a plan may use."""

    platform: Platform
    prices: Prices
    limits: Limits

    @cached_property
    def device(self) -> Device:
        """What every rank is."""
        return self.platform.require_device()

    @cached_property
    def weft(self) -> Prices:
        """What collectives take by weft's own backend, where ranks are cores."""
        return Prices(self.platform, library="weft")

    @cached_property
    def stack(self) -> SoftwareStack:
        """The versions that execute a plan on GPUs: given, and assumed where they are not."""
        return completed_stack(self.limits.stack, self.device.vendor)

    def alone(self, group: CollectiveGroup) -> Price:
        """Return what the library takes for a collective alone."""
        return self.prices.collective_price(group.what, group.ranks)

    def spans_nodes(self, group: CollectiveGroup) -> bool:
        """Return whether the ranks of a group are on several nodes."""
        levels = self.prices.levels(group.ranks)
        return any(level.size > 1 for level in levels[self.platform.node_levels :])

    def node(self, group: CollectiveGroup) -> Platform | None:
        """Return the part of a node that a group is in; None where it spans nodes."""
        if self.spans_nodes(group):
            return None
        levels = self.prices.levels(group.ranks)[: self.platform.node_levels]
        used = tuple(level for level in levels if level.size > 1)
        return replace(self.platform, levels=used, node_levels=len(used), sources={})


class NodeKey:
    """A platform of one node, equal by its name, ranks and device: a key of caches."""

    def __init__(self, machine: Platform) -> None:
        self.machine = machine
        self._key = machine.name, machine.levels

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, NodeKey) or self._key != other._key:
            return False
        # A device has many numbers: it is compared, mostly by identity, and not hashed.
        mine, theirs = self.machine.device, other.machine.device
        return mine is theirs or mine == theirs


@lru_cache(maxsize=4096)
def algorithm_price(node: NodeKey, kind: str, name: str, nbytes: int) -> Price | None:
    """Return what a collective takes by an algorithm; None where it does not apply."""
    seconds = seconds_by(node.machine, kind, name, nbytes)
    return None if seconds is None else simulated_price(seconds, f"{name}, simulated")


def scaled(price: Price, times: float) -> Price:
    """Return a price and its range, ``times`` as long."""
    return replace(
        price, seconds=times * price.seconds, low=times * price.low, high=times * price.high
    )
