"""Durations of the kernels and collectives of a workload on a platform, each alone.

Kernels come from the models of ``weft.cost``. ``collective_price`` prices a collective by the
first of three models that applies, and the ``model`` of the price names it:

    the library   a measured curve inside a node, its fitted algorithms between nodes
    simulated     the fastest of a few algorithms that libraries use, by the simulator
    link          latency and bytes over the slowest link, if nothing can be simulated
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import exp, log, prod
from typing import TYPE_CHECKING

import numpy as np

from weft.collectives import collective
from weft.cost.bus import bus_factor
from weft.cost.nccl import library_price
from weft.cost.price import Price, price
from weft.cost.ranges import range_term
from weft.errors import ScheduleError, UnknownNameError, UsageError, WeftError, nearest
from weft.hardware.libraries import Fit, library_names
from weft.hardware.network import Level
from weft.simulator import simulate
from weft.step.step_graph import distinct_targets

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.schedule import Cost
    from weft.step import Collective

__all__ = [
    "Prices",
    "collective_price",
    "default_library",
    "known_library",
    "levels_of",
    "seconds_by",
    "simulated_price",
]

# Algorithms that libraries have between nodes; the fastest counts.
_ALGORITHMS = {
    "all_reduce": ("hierarchical", "halving-doubling", "ring"),
    "all_gather": ("hierarchical", "halving-doubling", "ring"),
    # Between nodes the two-level one is priced as its mirror, a hierarchical all-gather.
    "reduce_scatter": ("halving-doubling", "ring"),
    "all_to_all": ("direct",),
    "broadcast": ("hierarchical", "scatter-allgather"),
    "reduce": ("pull", "eager"),
    "gather": ("direct",),
    "scatter": ("direct",),
}
_MIRRORS = {"reduce_scatter": "all_gather", "reduce": "broadcast"}
# Inside a node libraries use all links of a rank at once: on a mesh, rings over each of them.
_INSIDE = {
    "all_reduce": ("all_reduce", "direct"),
    "all_gather": ("all_gather", "direct"),
    "reduce_scatter": ("reduce_scatter", "direct"),
    "broadcast": ("reduce", "pull"),  # run backwards: the root scatters, then all gather
}
_MANY = 2048  # ranks from which on one algorithm is enough
_MANY_NODES = 64  # of an exchange that are simulated; among more it is scaled
PRODUCTS = ("gemm", "bmm")  # families of matrix products


@dataclass
class Prices:
    """Prices on one platform, each asked for once."""

    platform: Platform
    library: str = "nccl"
    known: dict[object, Price] = field(default_factory=dict)
    groups: dict[object, tuple[tuple[int, ...], tuple[Level, ...]]] = field(default_factory=dict)
    shares: dict[object, list[tuple[float, float]]] = field(default_factory=dict)

    def kernel(self, cost: Cost) -> float:
        """Return the seconds of a kernel on an idle device."""
        return self.kernel_price(cost).seconds

    def kernel_price(self, cost: Cost) -> Price:
        """Return the seconds of a kernel with their range.

        Products of matrices take the share of their price that products of their dtype were
        recorded to take on this machine, if it was traced or checked.
        """
        found = price(cost, self.platform.require_device())
        recorded = self.platform.recorded
        # Traces and checks give shares of products only (`Recorded`).
        if recorded is None or cost.family not in PRODUCTS or cost.seconds:
            return found
        seen = recorded.products.get(cost.dtype or "bf16")
        return found if seen is None or seen.share == 1.0 else _scaled(found, seen.share)

    def collective(self, what: Collective, ranks: tuple[int, ...]) -> float:
        """Return the seconds of a collective once all of its ``ranks`` have arrived."""
        return self.collective_price(what, ranks).seconds

    def collective_price(self, what: Collective, ranks: tuple[int, ...]) -> Price:
        """Return the seconds of a collective with their range."""
        levels = self.levels(ranks)
        key = what.kind, what.nbytes, what.dtype, what.copies, levels
        if key not in self.known:
            found = collective_price(self.platform, self.library, what, levels)
            share = self._recorded_share(what, levels)
            self.known[key] = found if share is None else _scaled(found, share)
        return self.known[key]

    def _recorded_share(self, what: Collective, levels: tuple[Level, ...]) -> float | None:
        """Return what such collectives took over their price, between the sizes that were seen.

        The price carries them to other sizes: shares change slowly with the size.
        """
        num_ranks = prod(level.size for level in levels)
        kind = (what.kind, num_ranks)
        if self.platform.recorded is None or not what.nbytes:
            return None
        key = (*kind, what.dtype, what.copies, levels)  # all that the price depends on
        if key not in self.shares:
            seen = {
                each.nbytes: each.seconds
                for each in self.platform.recorded.collectives
                if (each.kind, each.ranks) == kind and each.nbytes and each.seconds
            }
            self.shares[key] = [
                (log(nbytes), log(seconds / priced))
                for nbytes, seconds in sorted(seen.items())
                if (priced := self._priced(what, nbytes, levels)) > 0
            ]
        points = self.shares[key]
        if not points:
            return None
        # Interpolated in logarithms, and constant beyond the sizes that were seen.
        at = [point[0] for point in points]
        return exp(float(np.interp(log(what.nbytes), at, [point[1] for point in points])))

    def _priced(self, what: Collective, nbytes: int, levels: tuple[Level, ...]) -> float:
        like = replace(what, nbytes=nbytes)
        return collective_price(self.platform, self.library, like, levels).seconds

    def levels(self, ranks: tuple[int, ...]) -> tuple[Level, ...]:
        """Return the levels that a group sees, found once for each."""
        # Hashing very many ranks takes longer than all else; the entry keeps their tuple alive.
        key = id(ranks) if len(ranks) > _MANY else ranks
        if key not in self.groups:
            self.groups[key] = ranks, levels_of(self.platform, ranks)
        return self.groups[key][1]


def default_library(platform: Platform) -> str:
    """Name the library that torch takes there by itself: the first of those measured on it."""
    if platform.libraries:
        return platform.libraries[0].name
    return "gloo" if platform.require_device().is_core else "nccl"


def known_library(platform: Platform, name: str) -> str:
    """Return the name of a library; raise if the platform does not have it."""
    known = [each.name for each in platform.libraries]
    if not known:
        known = ["gloo", "weft"] if platform.require_device().is_core else [*library_names()]
    if name not in known:
        raise UnknownNameError(
            f"{platform.name} was not measured with a library {name!r}", nearest(name, known)
        )
    return name


def levels_of(platform: Platform, ranks: tuple[int, ...]) -> tuple[Level, ...]:
    """Return the levels of the network that a group of ranks sees: how many it has on each.

    Groups of a job are regular, so what a member sees in the mean is what all see.
    """
    found, members = [], set(ranks)
    for level in platform.levels:
        # A group of every k-th rank has one member in each inner level and sees outer ones only.
        outer = {member // level.size for member in members}
        each = len(members) // len(outer)
        found.append(level if each == level.size else level.cut(each))
        members = outer
    return tuple(found)


def collective_price(
    platform: Platform, library: str, what: Collective, levels: tuple[Level, ...]
) -> Price:
    """Price a collective of a group that sees ``levels`` of a platform, with its range."""
    inner = platform.node_levels
    used = tuple(level for level in levels if level.size > 1)
    if not used or (not what.nbytes and what.kind != "barrier"):
        return Price(0.0, 0.0, 0.0, model="nothing to move")
    inside_node = sum(level.size > 1 for level in levels[:inner])
    # An exchange of tokens to experts: a token with several experts on one node crosses once.
    if what.copies and 0 < inside_node < len(used):
        return _once_a_node(platform, library, what, levels)
    narrow = replace(platform, levels=used, node_levels=inside_node, sources={})
    kind, nbytes = what.kind, what.nbytes
    if kind not in (*_ALGORITHMS, "send", "recv", "barrier"):
        raise UnknownNameError(
            f"unknown collective {kind!r}", nearest(kind, [*_ALGORITHMS, "send", "barrier"])
        )
    if kind == "barrier":  # as a library does it: a reduction of one number
        kind, nbytes = "all_reduce", 8
    try:
        found = library_price(narrow, kind, nbytes, name=library, dtype=what.dtype)
    # No measured curve and no fitted algorithms for this machine, kind or size: simulate it.
    except WeftError:
        pass
    else:
        how = "measured" if isinstance(found.fit, Fit) else "its algorithms"
        low, high = (found.seconds * each for each in (found.low, found.high))
        return Price(found.seconds, low, high, model=f"{library}, {how}")
    inside = all(level.size == 1 for level in levels[inner:])
    seconds = _simulated(narrow, kind, nbytes, inside=inside)
    if seconds is not None:
        return simulated_price(seconds, "simulated")
    return simulated_price(_link_bound(kind, nbytes, used), "link")


def _once_a_node(
    platform: Platform, library: str, what: Collective, levels: tuple[Level, ...]
) -> Price:
    """Price an exchange that sends a token once to each node, and from there to its ranks.

    Both parts run in a pipeline of chunks, so the longer one counts. DeepEP's kernels reach the
    rates of the links as NCCL does: 153 GB/s of NVLink and 43 to 58 of RDMA on H800
    (deepseek-ai/DeepEP, docs/legacy.md).
    """
    inner = platform.node_levels
    num_nodes, num_ranks = (prod(level.size for level in part) for part in (levels[inner:], levels))
    once = what.nbytes / distinct_targets(num_ranks, what.copies)
    across = round(once * distinct_targets(num_nodes, what.copies))
    same_rail = (*(level.cut(1) for level in levels[:inner]), *levels[inner:])
    same_node = (*levels[:inner], *(level.cut(1) for level in levels[inner:]))
    parts = [
        collective_price(platform, library, replace(what, nbytes=size, copies=0), seen)
        for size, seen in ((across, same_rail), (what.nbytes, same_node))
    ]
    longest = max(parts, key=lambda each: each.seconds)
    return replace(longest, model=f"{longest.model}, once a node")


def _link_bound(kind: str, nbytes: int, used: tuple[Level, ...]) -> float:
    """Return what the bytes that cross take over the slowest of the levels between its ends."""
    latency = max(level.latency for level in used)
    rates = (level.link_rate if kind in ("send", "recv") else level.rate for level in used)
    return latency + nbytes * bus_factor(kind, prod(level.size for level in used)) / min(rates)


def _simulated(platform: Platform, kind: str, size: int, *, inside: bool) -> float | None:
    """Return the time of the fastest algorithm; of a reduction across nodes that of its mirror.

    A two-level all-gather run backwards is a two-level reduce-scatter of the same bytes, and a
    broadcast a reduction to one rank. Among very many ranks the first algorithm that applies is
    the one that a library would take. None: no algorithm applies.
    """
    if _node_size(platform) is not None:
        kind = _MIRRORS.get(kind, kind)
    if kind == "all_to_all" and platform.num_nodes > _MANY_NODES:
        platform, size = _fewer_nodes(platform, size)
    tried = [(kind, algorithm) for algorithm in _ALGORITHMS.get(kind, ())]
    # First, because among very many ranks only the first that applies is simulated.
    if inside and kind in _INSIDE:
        tried.insert(0, _INSIDE[kind])
    found: list[float] = []
    for each, algorithm in tried:
        if found and platform.num_ranks > _MANY:
            break
        seconds = seconds_by(platform, each, algorithm, size)
        found += [] if seconds is None else [seconds]
    return min(found, default=None)


def seconds_by(platform: Platform, kind: str, algorithm: str, size: int) -> float | None:
    """Simulate a collective by one algorithm; None where it does not apply."""
    num_ranks = platform.num_ranks
    try:
        schedule = collective(
            kind,
            algorithm,
            num_ranks=num_ranks,
            # Rounded up to equal chunks; the padding is less than one byte a rank.
            nbytes=-(-size // num_ranks) * num_ranks,
            node_size=_node_size(platform),
        )
        # A tolerance of 0.1 % joins events that nearly coincide, far below the error of a price.
        return simulate(schedule, platform, tolerance=1e-3).makespan
    except (UsageError, ScheduleError):
        return None


def _node_size(platform: Platform) -> int | None:
    """Return how many ranks each of several nodes has; None where one level joins all ranks."""
    return platform.node_size if 1 < platform.node_size < platform.num_ranks else None


def _fewer_nodes(platform: Platform, size: int) -> tuple[Platform, int]:
    """Return an exchange among fewer nodes that takes as long: the same bytes leave each rank.

    All messages of a rank go at once and its port to other nodes is what they wait for, so
    fewer and larger ones take the same time.
    """
    left = 1 - platform.node_size / platform.num_ranks
    fewer = platform.resized(platform.node_size * _MANY_NODES)
    return fewer, round(size * left / (1 - fewer.node_size / fewer.num_ranks))


def _scaled(found: Price, share: float) -> Price:
    seconds, low, high = (share * each for each in (found.seconds, found.low, found.high))
    model = f"{found.model}, as recorded"
    return replace(found, seconds=seconds, low=low, high=high, model=model)


def simulated_price(seconds: float, model: str) -> Price:
    """Return a price with the range of collectives that no library was measured with."""
    low, high = range_term("collectives", "simulated").factors
    return Price(seconds, seconds * low, seconds * high, model=model)
