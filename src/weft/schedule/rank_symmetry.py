"""Rank symmetry: which ranks of a schedule behave the same, so that one of each class is enough.

Ranks have coordinates, the innermost first (``dims``). If every relative value of every program
commutes with moving all ranks along one coordinate, then ranks that differ only there behave the
same, and the schedule can be *collapsed* along that coordinate. Two group actions are tried:
rotation (peers by shift) and flipping bits (peers by xor).
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from weft.schedule.accesses import accesses
from weft.schedule.inline import inline
from weft.schedule.ir import (
    Command,
    Flag,
    Program,
    Queue,
    Repeat,
    Scope,
    Signal,
    Submit,
    Wait,
    bodies,
)
from weft.schedule.schedule import Schedule
from weft.schedule.values import SELF, Group, Index, Peer, RankValue, Rel, Value

ROTATE, FLIP = "rotate", "flip"
BOTH = frozenset((ROTATE, FLIP))
NEITHER: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Symmetry:
    """How a schedule collapses: a group action per coordinate, or None."""

    dims: tuple[int, ...]
    actions: tuple[str | None, ...]

    @property
    def strides(self) -> tuple[int, ...]:
        """The distance between ranks that are neighbours in each coordinate."""
        return tuple(math.prod(self.dims[:level]) for level in range(len(self.dims)))

    @property
    def represents(self) -> int:
        """The number of ranks that one simulated rank represents."""
        return math.prod(d for d, a in zip(self.dims, self.actions, strict=True) if a)

    def representative(self, rank: Any) -> Any:
        """Return the representative of ``rank``: its collapsed coordinates are zero."""
        for dim, stride, action in zip(self.dims, self.strides, self.actions, strict=True):
            if action:
                rank = rank - rank // stride % dim * stride
        return rank

    def seen_by(self, runner: Any, owner: Any) -> Any:
        """Return the rank that accesses the owner's representative as ``runner`` does ``owner``.

        ``runner`` is a representative itself. Moving all ranks so that the owner lands on its
        representative moves the runner to the rank this returns.
        """
        place = runner
        for dim, stride, action in zip(self.dims, self.strides, self.actions, strict=True):
            if action:
                at = owner // stride % dim
                place = place + (-at % dim if action == ROTATE else at) * stride
        return place

    def representatives(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return all ranks that represent themselves."""
        ranks = np.arange(math.prod(self.dims))
        return np.flatnonzero(self.representative(ranks) == ranks)


def no_symmetry(dims: tuple[int, ...]) -> Symmetry:
    """Return the trivial symmetry, in which every rank represents itself."""
    return Symmetry(dims, (None,) * len(dims))


def find_symmetry(
    schedule: Schedule, dims: tuple[int, ...], allowed: Iterable[frozenset[str]]
) -> Symmetry:
    """Return how ``schedule`` collapses, given the actions the hardware allows per coordinate."""
    flat = inline(schedule)
    uses = _Uses(flat)
    symmetry = no_symmetry(dims)
    if uses.absolute:
        return symmetry
    actions = []
    for (dim, stride), candidates in zip(
        zip(dims, symmetry.strides, strict=True), allowed, strict=True
    ):
        for peer in uses.peers:
            candidates = candidates & _actions_of(peer, dim, stride)  # noqa: PLW2901 - narrowed step by step
        if any(_overlap(group, dim, stride) for group in uses.varying):
            candidates = NEITHER  # noqa: PLW2901
        if dim == 1 or not all(_covers(p, dims, stride, dim) for p in flat.programs):
            candidates = NEITHER  # noqa: PLW2901
        actions.append(ROTATE if ROTATE in candidates else FLIP if FLIP in candidates else None)
    return Symmetry(dims, tuple(actions))


def natural_dims(schedule: Schedule) -> tuple[int, ...]:
    """Return the coordinates that a schedule's groups suggest; one for all if they do not nest."""
    flat = inline(schedule)
    cuts = {1, flat.num_ranks}
    for index in _Uses(flat).peers:
        group = index.group
        if group.size > 1:
            cuts |= {group.stride, group.stride * group.size}
    for program in flat.programs:
        if isinstance(program.ranks, range) and len(program.ranks) > 1:
            cuts.add(program.ranks.step)
    chain = sorted(cuts)
    pairs = list(pairwise(chain))
    if any(outer % inner for inner, outer in pairs):
        return (flat.num_ranks,)
    return tuple(outer // inner for inner, outer in pairs) or (1,)


class _Uses:
    """What determines symmetry: peers, groups on which sizes or flags depend, absolute ranks."""

    def __init__(self, flat: Schedule) -> None:
        self.absolute = False
        self.peers: set[Index] = set()
        self.varying: set[Group] = set()
        for program in flat.programs:
            for queue in program.queues:
                self._rank(queue.host)
                for command in _commands(queue):
                    self._command(command)

    def _command(self, command: Command | Repeat) -> None:
        if isinstance(command, Repeat):
            return
        for _, where in accesses(command):
            self._rank(where.rank)
            self._value(where.nbytes)
        match command:
            case Signal(flag):
                self._flag(flag)
            case Wait(flag, count):
                self._flag(flag)
                self._value(count)
            case Submit(rank, _, count, hold):
                # If one host submits for others, ranks are not symmetric.
                self.absolute |= rank != SELF
                self._value(count)
                if hold:
                    self._flag(hold)
            case _:
                pass

    def _flag(self, flag: Flag) -> None:
        self._rank(flag.rank)
        self._value(flag.index)

    def _rank(self, rank: RankValue) -> None:
        if isinstance(rank, Peer) and not rank.table and not rank.index.group.ranks:
            self.peers.add(rank.index)
            self.absolute |= rank.index.masks
        else:
            # A rank by number, or from a table: nothing says that others have the same one.
            self.absolute = True

    def _value(self, value: Value) -> None:
        if isinstance(value, Rel):
            groups = {term.index.group for term in value.terms if term.varies}
            self.absolute |= any(group.ranks for group in groups)
            self.varying |= groups


def _commands(queue: Queue) -> Iterator[Command | Repeat]:
    pending: list[Command | Repeat] = list(queue.commands)
    while pending:
        command = pending.pop()
        yield command
        if isinstance(command, Scope):
            pending += [*command.enter, *command.leave]
        for body in bodies(command):
            pending += body


def _overlap(group: Group, dim: int, stride: int) -> bool:
    """Return whether a position in ``group`` depends on this coordinate."""
    return bool(group.stride % (stride * dim) and stride % (group.stride * group.size))


def _actions_of(index: Index, dim: int, stride: int) -> frozenset[str]:
    """Return the actions along a coordinate that commute with taking this peer."""
    group = index.group
    if index.xor and not _inside(index):
        return NEITHER
    stays = index.shift % group.size == 0 and not any(index.advance) and not index.masks
    if stays or not _overlap(group, dim, stride):
        return BOTH
    if stride % group.stride:
        return NEITHER
    if index.xor:
        # The coordinate must be a bit field of the position.
        inside = stride * dim <= group.stride * group.size
        powers = (dim, stride // group.stride, group.size)
        return frozenset((FLIP,)) if inside and all(_power(p) for p in powers) else NEITHER
    # Both are translations of the position if the coordinate is its leading digit.
    if group.stride * group.size != stride * dim:
        return NEITHER
    return BOTH if dim == 2 and group.stride == stride else frozenset((ROTATE,))


def _inside(index: Index) -> bool:
    """Return whether a position whose bits are flipped stays in its group."""
    bits = _power(index.group.size) and 0 <= index.shift < index.group.size
    return (bits or index.shift == 0) and not any(index.advance)


def commutes(index: Index, symmetry: Symmetry) -> bool:
    """Return whether this position commutes with moving the ranks as ``symmetry`` says."""
    places = zip(symmetry.dims, symmetry.strides, symmetry.actions, strict=True)
    return not index.group.ranks and all(
        action is None or action in _actions_of(index, dim, stride)
        for dim, stride, action in places
    )


def _power(number: int) -> bool:
    return number & (number - 1) == 0


def _covers(program: Program, dims: tuple[int, ...], stride: int, dim: int) -> bool:
    """Return whether the program's ranks stay the same set when moved along a coordinate."""
    total = math.prod(dims)
    if len(program.ranks) == total:
        return True
    member = np.zeros(total, bool)
    member[np.asarray(program.ranks, np.int64)] = True
    lines = member.reshape(-1, dim, stride)
    return bool((lines == lines[:, :1, :]).all())
