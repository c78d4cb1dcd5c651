"""Integers and ranks that depend on the executing rank and on loop counters.

A compact Schedule stores one program for many ranks. What differs between ranks (peers, offsets,
flags) is written as a value relative to the rank's position in a group. Everything here evaluates
on integers and on numpy arrays alike, so that one definition serves a single command and a million
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

Numbers = Any  # an int, or an array of int64: every `at` below broadcasts


@lru_cache(maxsize=256)
def _positions(ranks: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the position in ``ranks`` of each rank up to the largest listed (-1: not listed)."""
    where = np.full(max(ranks) + 1, -1, np.int64)
    where[list(ranks)] = np.arange(len(ranks))
    return where


@dataclass(frozen=True, slots=True)
class Group:
    """``size`` ranks that are ``stride`` apart.

    The position of a rank in its group is ``rank // stride % size``: ``Group(8)`` is a node of
    eight ranks, ``Group(16, 8)`` the ranks with the same local rank in sixteen such nodes. With
    ``ranks``, entry j of that list acts as rank j.
    """

    size: int
    stride: int = 1
    ranks: tuple[int, ...] = ()

    def position(self, rank: Numbers) -> Numbers:
        """Return the position of ``rank`` in its group."""
        if self.ranks:
            rank = _positions(self.ranks)[rank]
        return rank // self.stride % self.size

    def member(self, rank: Numbers, position: Numbers) -> Numbers:
        """Return the rank at ``position`` of the group that ``rank`` is in."""
        if not self.ranks:
            return rank + (position - self.position(rank)) * self.stride
        place = _positions(self.ranks)[rank]
        place = place + (position - place // self.stride % self.size) * self.stride
        return np.asarray(self.ranks, np.int64)[place]

    def within(self, outer: Group) -> Group:
        """Return this group when its ranks are the positions of ``outer``.

        ``(rank // s % n) // t % m`` is ``rank // (s t) % m`` because m t divides n, so nesting
        multiplies strides and nothing else.
        """
        if self.ranks:
            raise AssertionError("a group on listed ranks cannot be bound again")
        return Group(self.size, self.stride * outer.stride, outer.ranks)


@dataclass(frozen=True, slots=True)
class Index:
    """A transformed position in a group: ``(i + m) mod n``, or ``(i xor m) & mask``.

    ``m`` is ``shift`` plus ``advance`` times the loop counters.
    """

    group: Group
    shift: int = 0
    advance: tuple[int, ...] = ()
    xor: bool = False
    mask: int = -1

    @property
    def masks(self) -> bool:
        """Whether several positions of the group map to one."""
        whole = (1 << (self.group.size - 1).bit_length()) - 1
        return self.xor and self.mask & whole != whole

    def at(self, rank: Numbers, counters: Sequence[Numbers] = ()) -> Numbers:
        """Return the transformed position, for ``rank`` at these loop counters."""
        moved = self.shift + _dot(self.advance, counters)
        position = self.group.position(rank)
        if self.xor:
            return (position ^ moved) & self.mask
        return (position + moved) % self.group.size


@dataclass(frozen=True, slots=True)
class Term:
    """``scale`` times an index, or the entry of ``table`` at that index.

    A table of n entries is looked up by the moved index, one of n * n by the rank's own
    position times n plus the moved index (sizes of an uneven all-to-all).
    """

    index: Index
    scale: int = 1
    table: tuple[int, ...] = ()

    def at(self, rank: Numbers, counters: Sequence[Numbers] = ()) -> Numbers:
        """Return its value for ``rank`` at these loop counters."""
        index = self.index.at(rank, counters)
        if not self.table:
            return self.scale * index
        if len(self.table) > self.index.group.size:
            index = index + self.index.group.position(rank) * self.index.group.size
        return _table(self.table)[index]

    @property
    def varies(self) -> bool:
        """Whether two ranks or two iterations can see different values."""
        if not self.table:
            return self.scale != 0
        # Uneven chunk sizes fall from the first to the last, so this test is usually enough.
        return self.table[0] != self.table[-1] or len(set(self.table)) > 1


@dataclass(frozen=True, slots=True)
class Rel:
    """An integer: ``base``, plus ``steps`` times the loop counters, plus its terms."""

    base: int = 0
    steps: tuple[int, ...] = ()
    terms: tuple[Term, ...] = ()

    def at(self, rank: Numbers, counters: Sequence[Numbers] = ()) -> Numbers:
        """Return its value for ``rank`` at these loop counters."""
        total = self.base + _dot(self.steps, counters)
        for term in self.terms:
            total = total + term.at(rank, counters)
        return total


@dataclass(frozen=True, slots=True)
class Peer:
    """A rank: the member of my group at ``index``, or at the entry of ``table`` there."""

    index: Index
    table: tuple[int, ...] = ()

    def at(self, rank: Numbers, counters: Sequence[Numbers] = ()) -> Numbers:
        """Return the rank it names, for ``rank`` at these loop counters."""
        position = self.index.at(rank, counters)
        if self.table:
            position = _table(self.table)[position]
        return self.index.group.member(rank, position)


Value = int | Rel
RankValue = int | Peer
SELF = Peer(Index(Group(1)))  # the only member of a group of one


def value_at(value: Value | RankValue, rank: Numbers, counters: Sequence[Numbers] = ()) -> Numbers:
    """Return ``value`` for ``rank`` at these loop counters."""
    return value if isinstance(value, int) else value.at(rank, counters)


def as_int(value: Value | RankValue) -> int:
    """Return a value of an expanded command, which has no relative values left."""
    assert isinstance(value, int), f"{value} is relative"
    return value


def plus(left: Value, right: Value) -> Value:
    """Return the sum of two values; plain integers stay plain."""
    if isinstance(left, int) and isinstance(right, int):
        return left + right
    a = Rel(left) if isinstance(left, int) else left
    b = Rel(right) if isinstance(right, int) else right
    depth = max(len(a.steps), len(b.steps))
    steps = tuple(
        x + y for x, y in zip(_padded(a.steps, depth), _padded(b.steps, depth), strict=True)
    )
    return Rel(a.base + b.base, steps, a.terms + b.terms)


def shifted(group: Group, shift: int, *advance: int) -> Peer:
    """Return the peer ``shift`` positions on in the group, ``advance`` more in each iteration."""
    return Peer(Index(group, shift, advance))


def flipped(group: Group, bits: int) -> Peer:
    """Return the peer whose position differs in ``bits``."""
    return Peer(Index(group, bits, xor=True))


def bind_rank(value: RankValue, outer: Group) -> RankValue:
    """Return ``value`` of a schedule whose ranks are the positions of ``outer``."""
    if isinstance(value, int):
        if outer.size == len(outer.ranks):
            return outer.ranks[value]
        return Peer(Index(outer), (value,) * outer.size)
    return Peer(_bind_index(value.index, outer), value.table)


def bind_value(value: Value, outer: Group) -> Value:
    """Return ``value`` of a schedule whose ranks are the positions of ``outer``."""
    if isinstance(value, int):
        return value
    terms = tuple(replace(term, index=_bind_index(term.index, outer)) for term in value.terms)
    return replace(value, terms=terms)


def _bind_index(index: Index, outer: Group) -> Index:
    return replace(index, group=index.group.within(outer))


def _dot(steps: tuple[int, ...], counters: Sequence[Numbers]) -> Numbers:
    total: Numbers = 0
    for step, counter in zip(steps, counters, strict=False):
        if step:
            total = total + step * counter
    return total


def _padded(steps: tuple[int, ...], depth: int) -> tuple[int, ...]:
    return steps + (0,) * (depth - len(steps))


@lru_cache(maxsize=256)
def _table(values: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.asarray(values, np.int64)
