"""Which ops of different ranks are one collective: the k-th of a group is the k-th for all."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from weft.errors import WorkloadError
from weft.schedule.values import Group

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from weft.step.step_graph import Collective, StepGraph

Key = tuple[object, ...]
Members = tuple[tuple[int, ...], tuple[int, ...]]  # ranks, and the classes that they are of


@dataclass(frozen=True, slots=True)
class MatchedCollective:
    """One collective as its members see it: its number, its ranks, and what it moves.

    ``classes`` are the classes of ranks that take part, ``ranks`` the members of one such group.
    """

    number: int
    classes: tuple[int, ...]
    ranks: tuple[int, ...]
    what: Collective


@dataclass(frozen=True, slots=True)
class _Part:
    """What one class of ranks says about a collective."""

    rank_class: int
    op: int
    ranks: tuple[int, ...]
    classes: tuple[int, ...]
    what: Collective


def match_collectives(graph: StepGraph, node_size: int) -> dict[tuple[int, int], MatchedCollective]:
    """Find for each collective, by (class, number of its op), with whom it meets.

    Where the ranks of a class are in groups that lie differently on nodes of ``node_size`` ranks,
    the group that spans most nodes stands for all: the others wait for it.
    """
    parts: dict[Key, list[_Part]] = defaultdict(list)
    everyone = _classes(graph, tuple(range(graph.num_ranks)))
    for number in range(len(graph.steps)):
        _collect(graph, number, node_size, parts, everyone)
    found = {}
    for number, (key, mine) in enumerate(parts.items()):
        # c10d and NCCL match by order as well: the k-th call on a communicator is the k-th for
        # all.
        _agree(graph, key, mine)
        what = _whole(graph, mine)
        for part in mine:
            matched = MatchedCollective(number, part.classes, part.ranks, what)
            found[part.rank_class, part.op] = matched
    return found


def _collect(
    graph: StepGraph,
    number: int,
    node_size: int,
    parts: dict[Key, list[_Part]],
    everyone: Members,
) -> None:
    """Add what a class says, under a key by which the others find it."""
    step, count = graph.steps[number], defaultdict[Key, int](int)
    members: dict[tuple[str, int | None], Members] = {}
    for index, op in enumerate(step.ops):
        if op.kind != "collective" or op.collective is None:
            continue
        what = op.collective
        peer = what.peer if what.kind in ("send", "recv") else None
        place = what.group, peer
        if place not in members:
            whole = peer is None and graph.group(what.group) == Group(graph.num_ranks)
            found = everyone if whole else _farthest(graph, number, node_size, *place)
            members[place] = found
        ranks, classes = members[place]
        key: Key = (what.group, *classes)
        if peer is not None:
            other = graph.step_of[ranks[1]]
            # A send and its receive have different kinds; the pair of ends, in the order of the
            # message, is the key that both compute.
            sender_receiver = (number, other) if what.kind == "send" else (other, number)
            key = (what.group, "message", *sender_receiver)
        if peer is not None and len(classes) == 1:
            key = (*key, what.kind)  # a ring among equal ranks: each send is another's receive
        occurrence: Key = (*key, count[key])
        parts[occurrence].append(_Part(number, index, ranks, classes, what))
        count[key] += 1


def split_classes(graph: StepGraph) -> StepGraph:
    """Split classes whose ranks do the same but meet different classes in their collectives.

    A class meets the same classes wherever its ranks are, or it cannot be laid out once.
    """
    # Splitting one class may make another one uneven, so it repeats until nothing changes; each
    # round adds classes, so it ends.
    while len(graph.steps) > 1:
        parts: dict[tuple[int, Key], list[int]] = defaultdict(list)
        for number, step in enumerate(graph.steps):
            for rank, met in zip(step.ranks, _met_by_rank(graph, number), strict=True):
                parts[number, met].append(rank)
        if len(parts) == len(graph.steps):
            break
        steps = (
            replace(graph.steps[number], ranks=tuple(ranks)) for (number, _), ranks in parts.items()
        )
        graph = replace(graph, steps=tuple(steps))
    return graph


def _met_by_rank(graph: StepGraph, number: int) -> list[Key]:
    """Return for each rank of a class the classes that it meets, by group and peer."""
    step, found = graph.steps[number], defaultdict[int, list[tuple[int, ...]]](list)
    places = dict.fromkeys(
        (what.group, what.peer if what.kind in ("send", "recv") else None)
        for op in step.ops
        if (what := op.collective) is not None
    )
    for name, peer in places:
        group, first = graph.group(name), step.ranks[0]
        for rank in step.ranks:
            try:
                ranks, met = _members(graph, rank, name, None)
            except WorkloadError:  # left over: its group has no such ranks
                met = found[first][-1] if rank != first else ()
            else:
                if peer is not None:  # as far from it as the peer is from the first
                    away = group.position(np.array([rank, first]))
                    met = (graph.step_of[ranks[(away[0] + peer - away[1]) % group.size]],)
            found[rank].append(met)
    return [tuple(found[rank]) for rank in step.ranks]


def _farthest(
    graph: StepGraph, number: int, node_size: int, group: str, peer: int | None
) -> Members:
    """Return the members of the group, or message, of a class that spans most nodes."""
    first, where = graph.steps[number].ranks[0], graph.group(group)
    members, classes = _members(graph, first, group, peer)
    ranks = np.asarray(graph.steps[number].ranks, np.int64)
    if where.ranks:
        ranks = ranks[np.isin(ranks, where.ranks)]
    position = np.asarray(where.position(ranks), np.int64)
    if peer is None:
        start, to = np.asarray(where.member(ranks, 0)), np.full_like(position, where.size - 1)
    else:  # a rank of a ring talks to the one as far from it as the peer is from the first
        start, to = ranks, (position + peer - position[0]) % where.size
    last = np.asarray(where.member(ranks, to))
    span = np.abs(last // node_size - start // node_size)
    # With a number of ranks that groups do not divide, the last group is cut off.
    whole = np.asarray(where.member(ranks, where.size - 1)) < graph.num_ranks
    span[~whole] = -1  # left over: their group has no such ranks
    best = int(span.argmax())
    there = int(to[best]) if peer is not None else None
    other = _members(graph, int(ranks[best]), group, there)
    return other if other[1] == classes else (members, classes)


def _members(graph: StepGraph, rank: int, group: str, peer: int | None) -> Members:
    """Return the ranks that take part and their classes; of a message the two ends."""
    listed = graph.group(group).ranks
    ranks = graph.members(group, rank) if not listed or rank in listed else ()
    if not ranks or max(ranks) >= graph.num_ranks:
        raise WorkloadError(
            f"rank {rank} of {graph.name} is in no group of {group} that is whole.",
            "Ranks that are left over need a group of their own, or none of its collectives.",
        )
    if peer is not None:
        if not 0 <= peer < len(ranks):
            raise WorkloadError(
                f"rank {rank} of {graph.name} talks to position {peer} of {group}, which has "
                f"{len(ranks)}."
            )
        ranks = (rank, ranks[peer])
    return _classes(graph, ranks)


def _classes(graph: StepGraph, ranks: tuple[int, ...]) -> Members:
    return ranks, tuple(sorted({graph.step_of[member] for member in ranks}))


def _agree(graph: StepGraph, key: Key, parts: list[_Part]) -> None:
    """Raise unless every class that is waited for comes, and for the same collective."""
    here = {part.rank_class for part in parts}
    gone = [c for c in parts[0].classes if c not in here]
    if gone:
        first, late = parts[0], graph.steps[gone[0]].ranks[0]
        step = graph.steps[first.rank_class]
        raise WorkloadError(
            f"{step.ops[first.op].name} (op {first.op}) of rank {step.ranks[0]} in "
            f"{graph.name} waits for rank {late}, which never comes.",
            f"Every rank of group {key[0]} needs the same collectives in the same order.",
        )
    kinds = {part.what.kind for part in parts} - {"send", "recv"}
    if len(kinds) > 1:
        raise WorkloadError(
            f"ranks of group {key[0]} in {graph.name} disagree: {' and '.join(sorted(kinds))} "
            f"are their collective number {key[-1]}."
        )


def _whole(graph: StepGraph, parts: list[_Part]) -> Collective:
    """Return the collective of them all: the largest, and of an uneven one the busiest rank.

    A rank of an all-to-all sends and receives at once; who moves most decides, so an uneven one
    counts as the even one in which everyone moves as much (arXiv 2404.12674).
    """
    what = max((part.what for part in parts), key=lambda each: each.nbytes)
    if not any(part.what.splits for part in parts):
        return what
    sends = {part.rank_class: part.what for part in parts}
    ranks = parts[0].ranks
    classes = np.array([graph.step_of[rank] for rank in ranks])
    rows = {each: _row(sends[each], len(ranks)) for each in np.unique(classes).tolist()}
    total = np.sum([int((classes == each).sum()) * row for each, row in rows.items()], axis=0)
    busiest = 0
    for each, row in rows.items():
        places = np.flatnonzero(classes == each)
        kept = row[places]
        busiest = max(busiest, int((row.sum() - kept).max()), int((total[places] - kept).max()))
    # Of an even all-to-all of n bytes each rank moves n (r - 1) / r to others.
    nbytes = round(busiest * len(ranks) / max(1, len(ranks) - 1))
    return replace(what, nbytes=nbytes, splits=())


def _row(what: Collective, size: int) -> NDArray[np.int64]:
    if what.splits and len(what.splits) != size:
        raise WorkloadError(
            f"an all_to_all of group {what.group} has {len(what.splits)} splits for {size} ranks."
        )
    return np.array(what.splits or (what.nbytes // size,) * size, np.int64)
