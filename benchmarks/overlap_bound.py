"""A lower bound on the communication that any order of a graph exposes, whatever memory it uses.

    head ──▶ node ──▶ tail      head: nothing lets it start sooner; tail: what is left afterwards

Each stream runs one node at a time. What has to run on it before a node (or after it) bounds the
node's head (or tail): for every set of nodes, the smallest head plus their seconds. With the heads
and tails of all nodes, the best preemptive schedule of each stream alone (Jackson's: longest tail
first) ends no later than any order of the whole graph.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from weft.gpu.overlap_graph import OverlapGraph


def exposed_bound(graph: OverlapGraph) -> float:
    """Return seconds of communication that no order of a graph hides."""
    streams = _Streams(graph)
    heads, tails = streams.heads(), streams.tails()
    shortest = max(
        (
            _preemptive(heads[nodes], streams.seconds[nodes], tails[nodes])
            for nodes in streams.nodes
        ),
        default=0.0,
    )
    path = float((heads + streams.seconds + tails).max(initial=0.0))
    return max(0.0, max(shortest, path) - graph.compute)


class _Streams:
    """The nodes of each stream, and which of them come before and after each node.

    An edge is ``(node, ended)``: a user of a collective's start, other than its wait, does not need
    the collective to have ended.
    """

    def __init__(self, graph: OverlapGraph) -> None:
        nodes = graph.nodes
        self.seconds = np.array([n.comm if n.starts else n.seconds for n in nodes], float)
        groups = [n.group for n in nodes]
        self.nodes = [
            np.array([i for i, g in enumerate(groups) if g == group and self.seconds[i] > 0], int)
            for group in sorted(set(groups))
        ]
        self._place = {int(i): (s, k) for s, of in enumerate(self.nodes) for k, i in enumerate(of)}
        self._before: list[list[tuple[int, bool]]] = [[] for _ in nodes]
        self._after: list[list[tuple[int, bool]]] = [[] for _ in nodes]
        for number, node in enumerate(nodes):
            edges = [(each, not nodes[each].starts) for each in node.inputs]
            if node.waits_for >= 0:
                edges.append((node.waits_for, True))
            self._before[number] = edges
            for each, ended in edges:
                self._after[each].append((number, ended))

    def heads(self) -> np.ndarray:
        """Return the earliest start of each node."""
        return self._bounds(range(len(self._before)), self._before, forward=True)

    def tails(self) -> np.ndarray:
        """Return the least that is left to do when each node has ended."""
        return self._bounds(range(len(self._after) - 1, -1, -1), self._after, forward=False)

    def _bounds(
        self, numbers: range, edges: list[list[tuple[int, bool]]], *, forward: bool
    ) -> np.ndarray:
        found = np.zeros(len(edges))
        known = [np.zeros(len(of)) for of in self.nodes]  # the same, by stream
        beyond = [np.zeros((len(edges), len(of)), bool) for of in self.nodes]
        for number in numbers:
            bound = 0.0
            for other, ended in edges[number]:
                ends = found[other] + self.seconds[other]
                if not ended:
                    # A start's user comes after its issue, which is ``seconds`` before its end.
                    ends = found[other] if forward else ends - self.seconds[number]
                bound = max(bound, ends)
                if ended or forward:
                    for of_stream in beyond:
                        of_stream[number] |= of_stream[other]
                if ended and other in self._place:
                    stream, place = self._place[other]
                    beyond[stream][number, place] = True
            for stream, of in enumerate(self.nodes):
                chosen = np.flatnonzero(beyond[stream][number])
                if len(chosen):
                    order = chosen[np.argsort(known[stream][chosen], kind="stable")]
                    left = np.cumsum(self.seconds[of[order]][::-1])[::-1]
                    bound = max(bound, float((known[stream][order] + left).max()))
            found[number] = bound
            if number in self._place:
                stream, place = self._place[number]
                known[stream][place] = bound
        return found


def _preemptive(heads: np.ndarray, seconds: np.ndarray, tails: np.ndarray) -> float:
    """Return when the preemptive schedule of one stream by longest tail ends, tails included."""
    order, left = np.argsort(heads, kind="stable"), seconds.copy()
    waiting: list[tuple[float, int]] = []
    now = ends = 0.0
    at = 0
    while at < len(order) or waiting:
        if not waiting:
            now = max(now, float(heads[order[at]]))
        while at < len(order) and heads[order[at]] <= now:
            heapq.heappush(waiting, (-float(tails[order[at]]), int(order[at])))
            at += 1
        _, chosen = waiting[0]
        until = float(heads[order[at]]) - now if at < len(order) else np.inf
        run = min(float(left[chosen]), until)
        now += run
        left[chosen] -= run
        if run < until:
            heapq.heappop(waiting)
            ends = max(ends, now + float(tails[chosen]))
    return ends
