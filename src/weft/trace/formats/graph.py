"""Graph: what a rank did, as nodes with dependencies; some formats have no times.

If nodes have durations but no starts, they are scheduled: each as early as its dependencies and its
thread or stream allow. That is a schedule, not a measurement, and the notes of the trace say so.
"""

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from weft.trace.trace import EventKind, Trace, TraceColumns, possible_times, skipped_note
from weft.trace.trace_collectives import (
    TracedCollective,
    collective_of_arguments,
    is_collective_name,
    kind_of,
)
from weft.units import format_size

# Exceptions of parsing nodes of a truncated, too deeply nested or malformed file.
DAMAGED = (
    msgspec.DecodeError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    OverflowError,
    RecursionError,
)


@dataclass(frozen=True, slots=True)
class GraphNode:
    """One operator, kernel or collective."""

    id: int
    name: str
    needs: tuple[int, ...] = ()  # ids of nodes that must have ended
    parent: int | None = None
    is_gpu: bool = False
    seconds: float | None = None
    start_us: float | None = None  # as written: seconds since 1970 leave no nanoseconds to a float
    lane: int = 0  # thread or stream
    function: int = -1  # of PyTorch's record function; the profiler uses the same ids
    arguments: dict[str, Any] = field(default_factory=dict)  # as the profiler names them
    storages: tuple[int, ...] = ()  # of its tensors, where the file has them
    devices: tuple[str, ...] = ()  # of its tensors
    written: int = 0  # bytes of its results


@dataclass(frozen=True, slots=True)
class Graph:
    """The nodes of one rank."""

    path: str
    format: str
    schema: str
    nodes: tuple[GraphNode, ...]
    pid: int | None = None
    losses: tuple[str, ...] = ()

    def collectives(self) -> tuple[TracedCollective, ...]:
        """Return the collectives; ``row`` is the index of the most specific node of each."""
        return tuple(self._collectives())

    def _collectives(self) -> Iterator[TracedCollective]:
        by_id = {node.id: node for node in self.nodes}
        for index, node in enumerate(self.nodes):
            if node.is_gpu and is_collective_name(node.name):
                yield collective_of_arguments(index, node.arguments, kind_of(node.name))
            elif node.name.startswith("nccl:"):
                # newer files have sizes in the enclosing node; all have the shapes of the node
                # itself
                around = by_id.get(-1 if node.parent is None else node.parent, node).arguments
                says = around if "In msg nelems" in around else node.arguments
                yield collective_of_arguments(index, says, kind_of(node.name))

    @property
    def has_times(self) -> bool:
        """Whether any node has a duration; what is always 0 was never measured."""
        return any(node.seconds for node in self.nodes)

    def to_trace(self) -> Trace:
        """Return the graph as a trace; nodes without starts are scheduled."""
        every = [node for node in self.nodes if node.seconds is not None]
        known = all(node.start_us is not None for node in every)
        starts_us = np.array([node.start_us or 0.0 for node in every] if known else [])
        first_us = float(starts_us.min()) if len(starts_us) else 0.0
        begins = (starts_us - first_us) * 1e-6 if known else np.array(_laid_out(every))
        possible = possible_times(begins, np.array([node.seconds for node in every], float))
        timed = [node for node, keep in zip(every, possible.tolist(), strict=True) if keep]
        names = {name: i for i, name in enumerate(dict.fromkeys(node.name for node in timed))}
        lanes = {lane: i for i, lane in enumerate(dict.fromkeys((n.is_gpu, n.lane) for n in timed))}
        details = [msgspec.json.encode(n.arguments) if n.arguments else b"" for n in timed]
        unset = np.full(len(timed), -1, np.int64)
        columns = TraceColumns(
            kind=np.array([_kind(node) for node in timed], np.int8),
            name=np.array([names[node.name] for node in timed], np.int32),
            start=begins[possible],
            duration=np.array([node.seconds for node in timed], float),
            thread=np.array([lanes[n.is_gpu, n.lane] for n in timed], np.int32),
            stream=np.array([n.lane if n.is_gpu else -1 for n in timed], np.int64).astype(np.int32),
            device=np.array([0 if n.is_gpu else -1 for n in timed], np.int32),
            correlation=unset,
            external=unset,
            nbytes=unset,
            sequence=unset,
            function=np.array([n.function for n in timed], np.int64),
            detail=np.array([i if d else -1 for i, d in enumerate(details)], np.int32),
        )
        return Trace(
            path=self.path,
            columns=columns,
            names=tuple(names),
            threads=tuple(("gpu" if gpu else "host", str(lane)) for gpu, lane in lanes),
            details=tuple(details),
            num_events=len(self.nodes),
            origin_ns=int(first_us) * 1000 + round(first_us % 1 * 1000),
            format=self.format,
            about={"schema": self.schema, "laid_out": not known},
            losses=(*self.losses, *skipped_note(possible), *self._notes(known=known)),
        )

    def _notes(self, *, known: bool) -> list[str]:
        if not self.has_times:
            found = self.collectives()
            nbytes = sum(c.nbytes or 0 for c in found)
            what = f"a graph of {len(self.nodes)} nodes without times, {len(found)} collectives"
            how = "give it together with the Kineto trace of the same rank, or use weft predict"
            return [f"{what} of {format_size(nbytes)}: {how}"]
        if not known:
            return ["no start times: nodes stand as early as what they need allows"]
        return []


def _kind(node: GraphNode) -> EventKind:
    if not node.is_gpu:
        return EventKind.OP
    return EventKind.COPY if node.name.startswith(("Memcpy", "Memset")) else EventKind.KERNEL


def _laid_out(nodes: list[GraphNode]) -> list[float]:
    """Return start times: each node starts after its dependencies, once its lane is free."""
    place = {node.id: i for i, node in enumerate(nodes)}
    needs = [[place[n] for n in node.needs if n in place] for node in nodes]
    waiting = [len(each) for each in needs]
    followers: dict[int, list[int]] = defaultdict(list)
    for index, each in enumerate(needs):
        for needed in each:
            followers[needed].append(index)
    ready = deque(index for index, count in enumerate(waiting) if count == 0)
    start, free = [0.0] * len(nodes), defaultdict[tuple[bool, int], float](float)
    while ready:
        index = ready.popleft()
        node = nodes[index]
        lane = (node.is_gpu, node.lane)
        ends = [start[n] + (nodes[n].seconds or 0.0) for n in needs[index]]
        start[index] = max([free[lane], *ends])
        free[lane] = start[index] + (node.seconds or 0.0)
        for follower in followers[index]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                ready.append(follower)
    return start
