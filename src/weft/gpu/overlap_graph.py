"""The nodes of a compiled graph with their durations, and the replay of an order of them."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class OverlapNode:
    """One node: what it takes on the compute stream, and what it allocates and reads.

    A node that starts a collective has its ``group`` and ``comm`` seconds; one that waits names the
    start. ``allocates`` are (storage, bytes) that come to life with it, ``uses`` the storages that
    it reads or hands on. Storages that are ``kept`` by the graph's output are never freed.
    """

    inputs: tuple[int, ...]
    seconds: float = 0.0
    group: str = ""
    comm: float = 0.0
    waits_for: int = -1
    allocates: tuple[tuple[int, int], ...] = ()
    uses: tuple[int, ...] = ()

    @property
    def starts(self) -> bool:
        """Whether it starts a collective."""
        return self.group != ""


@dataclass(frozen=True, slots=True)
class OverlapReplay:
    """What an order takes: all seconds, those in which the compute stream waits, peak memory."""

    seconds: float
    exposed: float
    peak: int


class RangeMaximum:
    """The largest of any range of some numbers, in constant time: maxima of powers of two."""

    def __init__(self, values: Sequence[int]) -> None:
        self._levels = [np.asarray(values, np.int64)]
        while len(self._levels[-1]) > 1 << (len(self._levels) - 1):
            last, half = self._levels[-1], 1 << (len(self._levels) - 1)
            self._levels.append(np.maximum(last[:-half], last[half:]))

    def __getitem__(self, place: int) -> int:
        return int(self._levels[0][place])

    def between(self, first: int, last: int) -> int:
        """Return the largest from ``first`` to ``last``, both included."""
        last = min(last, len(self._levels[0]) - 1)
        level = (last - first + 1).bit_length() - 1
        found = self._levels[level]
        return int(max(found[first], found[last - (1 << level) + 1]))


@dataclass(frozen=True)
class OverlapGraph:
    """Nodes in a valid order; ``pinned`` ones (inputs, output) keep their place."""

    nodes: tuple[OverlapNode, ...]
    kept: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """The nodes that read each node."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for each in node.inputs:
                found[each].append(number)
        return tuple(tuple(each) for each in found)

    @cached_property
    def holders(self) -> dict[int, int]:
        """How many nodes use a storage; waits hold what their collective was given."""
        count: dict[int, int] = defaultdict(int)
        for node in self.nodes:
            for storage in self.held_by(node):
                count[storage] += 1
        return count

    def held_by(self, node: OverlapNode) -> tuple[int, ...]:
        """Return the storages that cannot be freed before a node has run."""
        if node.waits_for < 0:
            return node.uses
        return (*node.uses, *self.nodes[node.waits_for].uses)

    @cached_property
    def compute(self) -> float:
        """Seconds of all nodes on the compute stream."""
        return sum(node.seconds for node in self.nodes)

    @cached_property
    def ranks(self) -> tuple[float, ...]:
        """The longest path from the start of each node to the end, collectives included."""
        found = [0.0] * len(self.nodes)
        for number in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[number]
            after = max((found[user] for user in self.users[number]), default=0.0)
            found[number] = after + node.seconds + node.comm
        return tuple(found)

    @cached_property
    def needs(self) -> tuple[int, ...]:
        """The first node of the program that computes with what each node leads to."""
        found = [len(self.nodes)] * len(self.nodes)
        for number in range(len(self.nodes) - 1, -1, -1):
            node = self.nodes[number]
            if node.seconds > 0 and not node.starts:
                found[number] = number
            else:
                after = (found[user] for user in self.users[number])
                found[number] = min(after, default=len(self.nodes))
        return tuple(found)

    @cached_property
    def chains(self) -> dict[int, tuple[int, ...]]:
        """The nodes before each collective that needs only inputs of the graph, in order."""
        found = {}
        for number, node in enumerate(self.nodes):
            if not node.starts:
                continue
            seen, left, fine = set[int](), list(node.inputs), True
            while left and fine:
                each = left.pop()
                if each in seen:
                    continue
                seen.add(each)
                before = self.nodes[each]
                fine = not before.starts and before.waits_for < 0 and len(seen) <= _CHAIN
                left += before.inputs
            if fine:
                found[number] = tuple(sorted(seen))
        return found

    @cached_property
    def before(self) -> tuple[int, ...]:
        """The bytes that are live before each node of the program."""
        own = (sum(nbytes for _, nbytes in node.allocates) for node in self.nodes)
        return tuple(self.profile[n] - nbytes for n, nbytes in enumerate(own))

    @cached_property
    def profile(self) -> RangeMaximum:
        """The bytes that are live at each node of the program, its own included."""
        live, found = 0, []
        left, size = dict(self.holders), dict[int, int]()
        for node in self.nodes:
            for storage, nbytes in node.allocates:
                live += nbytes
                size[storage] = nbytes
            found.append(live)
            for storage in self.held_by(node):
                left[storage] -= 1
                if not left[storage] and storage not in self.kept:
                    live -= size.pop(storage, 0)
        return RangeMaximum(found)

    def replay(self, order: Sequence[int]) -> OverlapReplay:
        """Run an order: the compute stream, a stream per group, and an allocator."""
        now, live, peak = 0.0, 0, 0
        free_at: dict[str, float] = defaultdict(float)
        done: dict[int, float] = {}
        left, size = dict(self.holders), dict[int, int]()
        for number in order:
            node = self.nodes[number]
            for storage, nbytes in node.allocates:
                live += nbytes
                size[storage] = nbytes
            peak = max(peak, live)
            if node.starts:
                done[number] = free_at[node.group] = max(now, free_at[node.group]) + node.comm
            elif node.waits_for >= 0:
                now = max(now, done[node.waits_for])
            now += node.seconds
            for storage in self.held_by(node):
                left[storage] -= 1
                if not left[storage] and storage not in self.kept:
                    live -= size.pop(storage, 0)
        now = max([now, *free_at.values()])
        return OverlapReplay(now, now - self.compute, peak)

    def waited(self, order: Sequence[int]) -> dict[int, float]:
        """Return the collectives that an order waits for, by their starts, and for how long."""
        now, found = 0.0, defaultdict[int, float](float)
        free_at: dict[str, float] = defaultdict(float)
        done: dict[int, float] = {}
        for number in order:
            node = self.nodes[number]
            if node.starts:
                done[number] = free_at[node.group] = max(now, free_at[node.group]) + node.comm
            elif node.waits_for >= 0 and done[node.waits_for] > now:
                found[node.waits_for] += done[node.waits_for] - now
                now = done[node.waits_for]
            now += node.seconds
        return dict(found)


_CHAIN = 8  # nodes between inputs of the graph and a collective that is started ahead, at most
