"""What one step does: the ops of each class of ranks, in the order in which a host issues them.

A StepGraph says nothing about how: which strategy hides a collective or which algorithm carries it
out is decided later. Ranks that do the same are written once, as one Step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Literal, get_args

import msgspec
import numpy as np

from weft.errors import FormatError, WorkloadError, nearest
from weft.schedule.ir import Cost
from weft.schedule.values import Group
from weft.units import brief

OpKind = Literal["kernel", "collective", "copy", "host"]
Phase = Literal["forward", "backward", "optimizer", ""]
COLLECTIVES = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("broadcast", "reduce", "gather", "scatter", "barrier", "send", "recv"),
)
WORLD = "world"  # the group of all ranks, which every workload has
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Collective:
    """Communication of a group: ``nbytes`` counts as nccl-tests does.

    That is the vector for broadcast, reduce and all_reduce, the total output for all_gather and
    gather, the total input for reduce_scatter, all_to_all and scatter, the message for send and
    recv. ``peer`` is a position in the group: the other end of a send or recv, the root of a
    broadcast, reduce, gather or scatter. ``splits`` are the bytes that this rank sends to each
    position, where an all_to_all is uneven. ``copies`` is to how many experts, on random ranks, an
    exchange sends each token that it carries once to a rank and once to a node (DeepEP).
    """

    kind: str
    nbytes: int
    dtype: str = "bf16"
    group: str = WORLD
    peer: int | None = None
    splits: tuple[int, ...] = ()
    copies: int = 0


def distinct_targets(targets: int, copies: int) -> float:
    """Return how many of ``targets`` are hit in the mean by ``copies`` sent at random.

    >>> distinct_targets(1, 8), distinct_targets(2, 2)
    (1.0, 1.5)
    """
    return targets * (1 - (1 - 1 / targets) ** copies)


@dataclass(frozen=True, slots=True)
class Op:
    """One thing that a host asks for: a kernel, a collective, a copy, or work of its own.

    It runs on ``stream`` behind what was put there before.
    """

    name: str
    kind: OpKind = "kernel"
    stream: str = "compute"
    cost: Cost | None = None
    collective: Collective | None = None
    after: tuple[int, ...] = ()  # numbers of the ops whose ends it waits for
    host: float | None = None  # seconds of the host before it launches; None: by the host model
    blocking: bool = False  # the host waits for its end
    seconds: float | None = None  # as measured; None: the cost decides
    phase: Phase = ""
    recomputed: bool = False  # of a forward pass that a backward pass computes again
    # Of recorded steps. How long a collective waits for ranks that the trace does not show before
    # its bytes move, and how long the stream idles before the op for a reason it does not show.
    waiting: float = 0.0
    pause: float = 0.0


@dataclass(frozen=True, slots=True)
class RankStep:
    """What each of ``ranks`` does, in the order of its host."""

    __repr__ = brief

    ranks: tuple[int, ...]
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes that the fullest rank needs, by what they are for."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    other: int = 0

    @property
    def total(self) -> int:
        """All of them together."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.other


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An op that no model knows: it is priced as memory traffic. ``why`` says what is missing."""

    name: str
    count: int
    nbytes: int
    why: str


@dataclass(frozen=True)
class StepGraph:
    """One step of a job on ``num_ranks`` ranks.

    ``groups`` says by name how ranks are grouped for their collectives: ``Group(8)`` is every
    eight neighbours, ``Group(16, 8)`` the ranks of equal number of sixteen such, and one with
    listed ranks is that single group. ``source`` is where it comes from.
    """

    __repr__ = brief

    name: str
    num_ranks: int
    steps: tuple[RankStep, ...]
    groups: Mapping[str, Group] = field(default_factory=dict)
    memory: Memory | None = None
    unsupported: tuple[Unsupported, ...] = ()
    source: str = ""

    @property
    def is_generated(self) -> bool:
        """Whether it was written from the shape of a model, and neither captured nor recorded."""
        return self.source.partition(":")[0] == "generated"

    @cached_property
    def step_of(self) -> tuple[int, ...]:
        """Return for each rank the number of its step."""
        number = [-1] * self.num_ranks
        for index, step in enumerate(self.steps):
            for rank in step.ranks:
                number[rank] = index
        return tuple(number)

    def group(self, name: str) -> Group:
        """Return a group by its name; that of all ranks is always there."""
        return self.groups[name] if name in self.groups else Group(self.num_ranks)

    def members(self, name: str, rank: int) -> tuple[int, ...]:
        """List the ranks of the group that ``rank`` is in, by position."""
        group = self.group(name)
        return tuple(group.member(rank, np.arange(group.size)).tolist())

    def ops(self) -> Iterator[Op]:
        """Yield every stored op, class by class."""
        for step in self.steps:
            yield from step.ops

    def to_json(self) -> bytes:
        """Write it so that ``StepGraph.from_json`` reads the same."""
        return msgspec.json.encode({"weft_workload": _FORMAT, "workload": self})

    @staticmethod
    def from_json(text: bytes | str) -> StepGraph:
        """Read what ``to_json`` wrote, and check it."""
        try:
            found = msgspec.json.decode(text, type=_File)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError(f"not a workload file: {error}") from error
        if found.weft_workload != _FORMAT:
            raise FormatError(
                f"this workload is of version {found.weft_workload}, known is {_FORMAT}",
                "Write it again with this version of weft.",
            )
        check(found.workload)
        return found.workload


class _File(msgspec.Struct):
    weft_workload: int
    workload: StepGraph


def check(graph: StepGraph) -> None:
    """Raise the first thing that makes a workload mean nothing."""
    seen = sorted(rank for step in graph.steps for rank in step.ranks)
    if graph.num_ranks < 1:
        raise WorkloadError(f"{graph.name}: num_ranks must be >= 1 (got {graph.num_ranks})")
    if len(seen) != graph.num_ranks or seen != list(range(len(seen))):
        raise WorkloadError(
            f"{graph.name} has {graph.num_ranks} ranks, its steps are for "
            f"{len(seen)}: each rank needs one.",
            "Give every rank exactly one step.",
        )
    for name, group in graph.groups.items():
        _check_group(graph, name, group)
    for step in graph.steps:
        if not step.ranks:
            raise WorkloadError(f"a step of {graph.name} is for no rank.", "Leave it out.")
        for number, op in enumerate(step.ops):
            _check_op(graph, number, op)


def _check_group(graph: StepGraph, name: str, group: Group) -> None:
    """Raise if a group has ranks that the workload does not have."""
    many, listed = graph.num_ranks, group.ranks
    reach = len(listed) if listed else many
    if (
        not (1 <= group.size <= many and 1 <= group.stride <= many)
        or (group.size - 1) * group.stride >= reach
        or len({rank for rank in listed if 0 <= rank < many}) != len(listed)
    ):
        raise WorkloadError(
            f"group {name!r} of {graph.name} has {group.size} ranks {group.stride} apart"
            f"{f' of {list(listed)}' if listed else ''}; the workload has {many}."
        )


def _check_op(graph: StepGraph, number: int, op: Op) -> None:
    where = f"op {number} ({op.name}) of {graph.name}"
    if op.kind not in get_args(OpKind):
        raise WorkloadError(f"{where} is of kind {op.kind!r}", nearest(op.kind, get_args(OpKind)))
    if any(not 0 <= earlier < number for earlier in op.after):
        raise WorkloadError(
            f"{where} comes after {op.after}; only ops before it can be waited for."
        )
    times = {name: getattr(op, name) for name in ("host", "seconds", "waiting", "pause")}
    for name, value in times.items():
        if value is not None and not 0 <= value < inf:
            raise WorkloadError(f"{where}: {name} must be >= 0 s and finite (got {value})")
    for name in ("flops", "nbytes", "tiles", "seconds", "scale") if op.cost is not None else ():
        value = getattr(op.cost, name)
        if not 0 <= value < inf:
            raise WorkloadError(f"{where}: {name} of its cost must be >= 0, finite (got {value})")
    if op.kind == "collective":
        _check_collective(graph, where, op.collective)
    elif op.collective is not None:
        raise WorkloadError(
            f"{where} has a collective, and kind {op.kind!r}", "Set its kind to 'collective'."
        )


def _check_collective(graph: StepGraph, where: str, what: Collective | None) -> None:
    if what is None:
        raise WorkloadError(f"{where} is a collective that does not say which.")
    if what.kind not in COLLECTIVES:
        raise WorkloadError(f"{where} is a {what.kind!r}", nearest(what.kind, COLLECTIVES))
    if what.group != WORLD and what.group not in graph.groups:
        raise WorkloadError(
            f"{where} is of group {what.group!r}", nearest(what.group, (*graph.groups, WORLD))
        )
    least = min(what.nbytes, *what.splits, 0)
    if least < 0:
        raise WorkloadError(f"{where}: bytes must be >= 0 (got {least})")
    if what.copies < 0:
        raise WorkloadError(f"{where}: copies must be >= 0 (got {what.copies})")
    if what.splits and what.kind != "all_to_all":
        raise WorkloadError(f"{where} is a {what.kind!r} with splits; only all_to_all has them.")
    if what.kind in ("send", "recv") and what.peer is None:
        raise WorkloadError(f"{where} does not say with which position of {what.group}.")
    size = graph.group(what.group).size
    if what.peer is not None and not 0 <= what.peer < size:
        raise WorkloadError(
            f"{where}: peer must be a position of {what.group}, 0 to {size - 1} (got {what.peer})"
        )
