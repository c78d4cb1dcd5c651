"""An order of a graph's nodes that hides its collectives behind computation, within a memory limit.

    nodes in program order ──▶ list scheduling by policy ──▶ replay of each order ──▶ the best
    (seconds, storages)        (prefetch, out of order)      (exposed, peak memory)

One compute stream runs nodes in order; each group of ranks has one stream of collectives, in the
order they are issued. A collective is started by its node and waited for by another, and its input
and output are held until then. Nothing here knows torch: ``weft.torch`` reads FX graphs.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from weft.gpu.overlap_graph import OverlapGraph

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class OrderPolicy:
    """How a list schedule chooses: see ``ordered``.

    ``ahead`` bounds the seconds that a group's stream has to do when a collective is started before
    its turn: others queue behind it. ``reach`` is how far a node may run before its turn (in nodes
    of the program), ``by_rank`` prefers the longest remaining path to program order. ``room`` are
    the bytes that may be live, also at any node of the program that comes before one that runs
    early; ``room_ahead`` of them may be taken by collectives that are started early. ``in_turn``
    starts gathers of parameters as ``ahead`` says, even if their input is there: casts of many
    parameters then run while the first gather is waited for.
    """

    ahead: float
    reach: int
    by_rank: bool
    room: int
    room_ahead: int
    in_turn: bool = False


def ordered(graph: OverlapGraph, policy: OrderPolicy) -> list[int] | None:
    """Return an order by list scheduling, None if it needs more memory than there is room.

    The next node of the program runs unless it would wait for a collective: then another node that
    is ready runs first, within ``reach``. Collectives start as soon as their input is there; those
    that need nothing but inputs of the graph (gathers of parameters) are started ahead, with the
    light nodes before them, in the order they are needed.
    """
    made = _ListSchedule(graph, policy).order
    return made if len(made) == len(graph.nodes) else None


class _ListSchedule:
    def __init__(self, graph: OverlapGraph, policy: OrderPolicy) -> None:
        self.graph, self.policy = graph, policy
        self.order: list[int] = []
        self._now, self._live = 0.0, 0
        self._free_at: dict[str, float] = defaultdict(float)
        self._done: dict[int, float] = {}
        self._left, self._size = dict(graph.holders), dict[int, int]()
        self._missing = [len(node.inputs) for node in graph.nodes]
        self._ran = [False] * len(graph.nodes)
        self._prefetches = [(graph.needs[number], number) for number in graph.chains]
        heapq.heapify(self._prefetches)
        self._starts: list[tuple[int, int]] = []  # ready collectives, by when they are needed
        self._ready: list[tuple[float, int]] = []  # other ready nodes, in program order
        self._by_rank: list[tuple[float, int]] = []  # the same, longest remaining path first
        for number, node in enumerate(graph.nodes):
            if not node.inputs:
                self._add(number)
        self._next = 0  # of the program: the first node that has not run
        while len(self.order) < len(graph.nodes) and self._live <= policy.room:
            self._advance()

    def _add(self, number: int) -> None:
        if self.graph.nodes[number].starts:
            if not self.policy.in_turn or number not in self.graph.chains:
                heapq.heappush(self._starts, (self.graph.needs[number], number))
        else:
            heapq.heappush(self._ready, (float(number), number))
            if self.policy.by_rank:
                heapq.heappush(self._by_rank, (-self.graph.ranks[number], number))

    def _grows(self, number: int) -> int:
        return sum(nbytes for _, nbytes in self.graph.nodes[number].allocates)

    def _fits(self, grows: int, until: int, room: int) -> bool:
        """Return whether a node's bytes may be live before its turn in the program."""
        if until <= self._next:
            return True
        extra = self._live - self.graph.before[self._next]
        most = self.graph.profile.between(self._next, until - 1)
        return extra + grows + most <= room

    def _advance(self) -> None:
        while self._ran[self._next]:
            self._next += 1
        while self._starts:  # their input is there: every second of waiting is lost
            _, number = heapq.heappop(self._starts)
            if not self._ran[number]:
                self._run(number)
        self._prefetch()
        chosen = self._choose()
        if chosen is not None:
            self._run(chosen)
        else:  # all that is left waits for a collective that was held back
            self._prefetch(must=True)

    def _prefetch(self, *, must: bool = False) -> None:
        """Start collectives ahead of their turn, in the order they are needed, within memory."""
        while self._prefetches:
            need, number = self._prefetches[0]
            if self._ran[number]:
                heapq.heappop(self._prefetches)
                continue
            chain = [each for each in self.graph.chains[number] if not self._ran[each]]
            grows = sum(self._grows(each) for each in (*chain, number))
            backlog = self._free_at[self.graph.nodes[number].group] - self._now
            early = need > self._next + 1
            fits = self._fits(grows, number, self.policy.room_ahead)
            if early and not must and (backlog > self.policy.ahead or not fits):
                return
            must = False
            heapq.heappop(self._prefetches)
            for each in (*chain, number):
                self._run(each)

    def _choose(self) -> int | None:
        """Return the next node of the compute stream: one that does not wait, if there is one."""
        if self.policy.by_rank:
            found, _ = self._first(self._by_rank)
            if found is not None:
                return found
        found, waiting = self._first(self._ready)
        return found if found is not None else waiting

    def _first(self, heap: list[tuple[float, int]]) -> tuple[int | None, int | None]:
        """Return the first node of a heap that may run now, and the first that would wait."""
        passed: list[tuple[float, int]] = []
        found = waiting = None
        limit = self._next + self.policy.reach
        while heap and found is None and len(passed) <= _LOOK:
            key, number = heapq.heappop(heap)
            if self._ran[number]:
                continue
            passed.append((key, number))
            node = self.graph.nodes[number]
            if node.waits_for >= 0 and self._done[node.waits_for] > self._now:
                waiting = number if waiting is None else min(waiting, number)
            elif number <= limit and self._fits(self._grows(number), number, self.policy.room):
                found = number
        for each in passed:
            if each[1] != found:
                heapq.heappush(heap, each)
        if found is None and waiting is None and passed:
            found = min(number for _, number in passed)
        return found, waiting

    def _run(self, number: int) -> None:
        graph, node = self.graph, self.graph.nodes[number]
        for storage, nbytes in node.allocates:
            self._live += nbytes
            self._size[storage] = nbytes
        if node.starts:
            end = max(self._now, self._free_at[node.group]) + node.comm
            self._done[number] = self._free_at[node.group] = end
        elif node.waits_for >= 0:
            self._now = max(self._now, self._done[node.waits_for])
        self._now += node.seconds
        for storage in graph.held_by(node):
            self._left[storage] -= 1
            if not self._left[storage] and storage not in graph.kept:
                self._live -= self._size.pop(storage, 0)
        self._ran[number] = True
        self.order.append(number)
        for user in graph.users[number]:
            self._missing[user] -= 1
            if not self._missing[user] and not self._ran[user]:
                self._add(user)


_LOOK = 64  # ready nodes that are looked at for one that does not wait


def best_order(graph: OverlapGraph, limit: int) -> list[int]:
    """Return the order with the least exposed communication whose peak memory is within a limit.

    Every policy is replayed; the order of the program is among them. In the best one, nodes are
    postponed behind the starts of collectives.
    """
    program = list(range(len(graph.nodes)))
    best = graph.replay(program)
    found, lowest = program, min(best.peak, limit)
    total = sum(node.comm for node in graph.nodes)
    for by_rank, reach, ahead, share, in_turn in _POLICIES:
        room_ahead = lowest + int(share * (limit - lowest))
        policy = OrderPolicy(ahead * total, reach, by_rank, limit, room_ahead, in_turn)
        made = ordered(graph, policy)
        if made is None:
            continue
        run = graph.replay(made)
        if run.peak <= limit and (best.peak > limit or run.exposed < best.exposed):
            best, found = run, made
    return postponed(graph, found, limit)


def postponed(graph: OverlapGraph, order: list[int], limit: int) -> list[int]:
    """Return an order in which nodes that a collective does not need come after its start.

    Gradients of weights hide exchanges of experts, and the reduction of the first layer's gradients
    at the end of a backward pass. First all collectives are treated that are waited for, then those
    with the least computation behind them, one by one.
    """
    best, tried = graph.replay(order), set[int]()

    def improved(order: list[int], behind: dict[int, float], shares: Sequence[float]) -> list[int]:
        nonlocal best
        found = order
        for share in shares:
            made = _moved(graph, order, {start: share * s for start, s in behind.items()})
            run = graph.replay(made)
            if run.peak <= limit and run.exposed < best.exposed:
                best, found = run, made
        return found

    for _ in range(_ROUNDS):
        before, order = order, improved(order, graph.waited(order), (0.5, 1.0, 2.0))
        if order is before:
            break
    for _ in range(_ROUNDS):
        start = _barely_hidden(graph, order, 2 * best.exposed, tried)
        if start is None:
            break
        tried.add(start)
        order = improved(order, {start: graph.nodes[start].comm}, _POSTPONED)
    return order


def _moved(graph: OverlapGraph, order: list[int], behind: dict[int, float]) -> list[int]:
    """Move up to that many seconds of computation behind the start of each collective.

    The nodes before a start, back to the start before it, are parted into those that it needs and
    the others; both keep their order.
    """
    made, first = list(order), 0
    for end, number in enumerate(order, 1):
        if number not in behind:
            continue
        needed, others, moved = [number], list[int](), 0.0
        known = {number}
        place = end - 1
        while place > first and moved < behind[number]:
            place -= 1
            each = made[place]
            if known.isdisjoint(graph.users[each]):
                others.append(each)
                moved += graph.nodes[each].seconds
            else:
                needed.append(each)
                known.add(each)
        made[place:end] = [*reversed(needed), *reversed(others)]
        first = end
    return made


def _barely_hidden(
    graph: OverlapGraph, order: list[int], within: float, tried: set[int]
) -> int | None:
    """Return the start of the collective that lacks most computation behind it, near the end."""
    found, most, after = None, 0.0, 0.0
    for number in reversed(order):
        node = graph.nodes[number]
        if node.comm - after > most and number not in tried:
            found, most = number, node.comm - after
        after += node.seconds
        if after > within:
            break
    return found


_ROUNDS = 6  # of postponing nodes
_POSTPONED = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)  # how much, in seconds of collectives
# What is tried: by rank, reach, the shares of all communication and of free memory that may be
# taken ahead, in turn. On graphs of 4,000 to 10,000 nodes each takes 0.03 to 0.4 s.
_FAR = 1 << 30
_POLICIES = (
    *product((False,), (128, 1024), (0.0, 1 / 512), (1.0, 0.25), (False,)),
    *product((True,), (1024,), (0.0, 1 / 512), (1.0, 0.5), (False,)),
    (True, 128, 0.0, 0.5, False),
    (False, _FAR, 0.0, 1.0, False),
    (False, _FAR, 1 / 512, 1.0, True),
)
