"""Collectives in other buckets: neighbours merged into one, or each split into several.

Merged, the last of some carries the bytes of all, and what needs one of them waits for it. Split,
the earlier parts are ready before the whole: parameters are assumed to become ready evenly since
the bucket before, in the order in which the host issues the kernels that produce them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from weft.step.step_graph import Op, RankStep

if TYPE_CHECKING:
    from weft.planner.candidates import CollectiveGroup
    from weft.step import Collective, StepGraph

# DDP's default of 25 MiB is a compromise: larger buckets pay fewer latencies, smaller ones start
# earlier.
TIMES = (2.0, 4.0, 8.0, 0.5, 0.25)  # as large as they are
_CALL = 5e-6  # seconds of the host for one more collective of a recorded step: a launch

Place = tuple[int, int]  # class of ranks, number of the op
Chosen = Callable[[RankStep], frozenset[int]]
Price = Callable[["Collective"], "float | None"]


@dataclass(frozen=True, slots=True)
class Bucketed:
    """A workload with other buckets: their bytes, and of each op the ops that it was.

    ``groups`` are those of ranks whose buckets changed: others move something else.
    """

    graph: StepGraph
    nbytes: int
    origin: dict[Place, tuple[int, ...]]
    groups: frozenset[str]

    def has(self, group: CollectiveGroup) -> bool:
        """Return whether a group moves gradients that are in these buckets."""
        return _reduces(group.what, group.phase) and group.what.group in self.groups


def gradient_buckets(step: RankStep) -> frozenset[int]:
    """Return the all-reduces of gradients: the backward pass goes on without their results."""
    found = {
        number
        for number, op in enumerate(step.ops)
        if op.collective is not None and _reduces(op.collective, op.phase) and not op.blocking
    }
    for op in step.ops:
        if op.phase in ("forward", "backward") and op.kind == "kernel":
            # A sum that the pass itself waits for is of tensor parallelism, not of gradients.
            found -= set(op.after)
    return frozenset(found)


def _reduces(what: Collective, phase: str) -> bool:
    return what.kind == "all_reduce" and phase == "backward"


def with_buckets(
    graph: StepGraph,
    times: float,
    chosen: Chosen = gradient_buckets,
    price: Price = lambda _what: None,
) -> Bucketed | None:
    """Make the ``chosen`` buckets ``times`` as large; None where none changes.

    ``price`` gives seconds of a collective, by which recorded durations are scaled.
    """
    steps, origin, groups = [], dict[Place, tuple[int, ...]](), set[str]()
    found: list[Collective] = []
    for number, step in enumerate(graph.steps):
        mine, buckets = _Rewritten(step, price), chosen(step)
        if times >= 1:
            mine.merge(_merged(step, round(times), buckets))
        else:
            mine.split(_split(step, round(1 / times), buckets))
        steps.append(RankStep(step.ranks, tuple(mine.ops)))
        origin |= {(number, place): old for place, old in mine.origin.items()}
        groups |= {what.group for n in mine.changed if (what := step.ops[n].collective)}
        found += [
            op.collective
            for place, op in enumerate(mine.ops)
            if op.collective and not buckets.isdisjoint(mine.origin[place])
        ]
    changed = replace(graph, steps=tuple(steps))
    # Classes of ranks with different layers may merge at different places and would then meet in
    # another order: a deadlock.
    if not groups or not _in_one_order(changed):
        return None
    largest = max(what.nbytes for what in found if what.group in groups)
    return Bucketed(changed, largest, origin, frozenset(groups))


def _in_one_order(graph: StepGraph) -> bool:
    """Return whether classes of ranks that meet in a group still do so in the same order."""
    orders: dict[tuple[object, ...], list[object]] = {}
    for step in graph.steps:
        mine: dict[str, list[object]] = defaultdict(list)
        for op in step.ops:
            if (what := op.collective) is not None and what.peer is None:
                mine[what.group].append(what.kind)
        for name, order in mine.items():
            ranks = graph.members(name, step.ranks[0])
            classes = {graph.step_of[rank] for rank in ranks if rank < graph.num_ranks}
            key = name, *sorted(classes)
            if len(classes) > 1 and orders.setdefault(key, order) != order:
                return False
    return True


def _runs(step: RankStep, chosen: frozenset[int]) -> list[list[int]]:
    """Return the chosen collectives of one kind, group and dtype, stream by stream."""
    streams: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for number, op in enumerate(step.ops):
        if op.collective is not None and number in chosen:
            what = op.collective
            streams[op.stream, what.kind, what.group, what.dtype].append(number)
    return list(streams.values())


def _merged(step: RankStep, times: int, chosen: frozenset[int]) -> list[list[int]]:
    """Return which buckets become one; a bucket that is needed before the last is, ends its own."""
    found = []
    for run in _runs(step, chosen):
        group: list[int] = []
        for number in run:
            inner = set(group)
            # An op between two buckets that needs the first would wait for the merged one, which
            # waits for that op.
            early = any(inner & set(op.after) for op in step.ops[group[0] : number]) if group else 0
            if len(group) >= times or early:
                found.append(group)
                group = []
            group.append(number)
        found.append(group)
    return [group for group in found if len(group) > 1]


def _split(step: RankStep, pieces: int, chosen: frozenset[int]) -> list[tuple[int, list[int]]]:
    """Return the buckets that kernels fill, with the places in front of which pieces go."""
    found = []
    for run in _runs(step, chosen):
        before = -1
        for number in run:
            # A bucket with no kernels since the one before is ready at once: pieces of it gain
            # nothing.
            filled = number - before - 1  # ops since the bucket before
            if any(op.kind == "kernel" for op in step.ops[before + 1 : number]):
                places = [before + 1 + filled * each // pieces for each in range(1, pieces)]
                found.append((number, places))
            before = number
    return found


class _Rewritten:
    """A step as it is written anew; ``origin`` says of each op which ops it was."""

    def __init__(self, step: RankStep, price: Price) -> None:
        self._step, self._price = step, price
        self.ops: list[Op] = []
        self.origin: dict[int, tuple[int, ...]] = {}
        self.changed: list[int] = []
        self._place: dict[int, int] = {}

    def merge(self, groups: list[list[int]]) -> None:
        """Write the step with each group of buckets as one, at the place of the last."""
        members = {group[-1]: group for group in groups}
        gone = {number for group in groups for number in group[:-1]}
        self.changed = [number for group in groups for number in group]
        for number, op in enumerate(self._step.ops):
            if number in gone:
                if op.host:  # what the host did before it, it does all the same
                    self._add((), Op("host", "host", "host", host=op.host))
                continue
            mine = members.get(number, [number])
            parts = [self._step.ops[each] for each in mine]
            after = {each for part in parts for each in part.after} - set(mine)
            self._add(mine, self._as_one(op, parts), sorted(after))

    def split(self, buckets: list[tuple[int, list[int]]]) -> None:
        """Write the step with each bucket in pieces."""
        pieces: dict[int, list[int]] = defaultdict(list)
        count: dict[int, int] = {}
        for number, places in buckets:
            count[number] = len(places) + 1
            for place in places:
                pieces[place].append(number)
        self.changed = [number for number, _ in buckets]
        for number, op in enumerate(self._step.ops):
            for bucket in pieces[number]:
                self._add((bucket,), self._piece(bucket, count[bucket], number))
            if number in count:
                self._add((number,), self._part(op, count[number]), op.after)
            else:
                self._add((number,), op, op.after)

    def _add(self, old: Iterable[int], op: Op, after: Iterable[int] | None = None) -> None:
        """Add an op that was ``old``; with ``after``, numbers of before, it stands for these."""
        old = tuple(old)
        if after is not None:
            needed = {self._place[each] for each in after}
            op = replace(op, after=tuple(sorted(needed)))
            self._place |= dict.fromkeys(old, len(self.ops))
        self.origin[len(self.ops)] = old
        self.ops.append(op)

    def _as_one(self, op: Op, parts: list[Op]) -> Op:
        """Return one collective of the bytes of several; recorded ones by the ratio of prices."""
        whats = [part.collective for part in parts if part.collective is not None]
        if len(parts) == 1 or op.collective is None:
            return op
        whole = replace(op.collective, nbytes=sum(what.nbytes for what in whats))
        if op.seconds is None:
            return replace(op, collective=whole)
        seconds = sum(part.seconds or 0.0 for part in parts)
        one, apart = self._price(whole), [self._price(what) for what in whats]
        if one and all(apart):
            # Recorded times keep their ratio to the model: only what merging changes comes from
            # prices.
            seconds *= one / sum(each for each in apart if each)
        waiting = sum(part.waiting for part in parts)
        return replace(op, collective=whole, seconds=seconds, waiting=waiting)

    def _part(self, op: Op, pieces: int) -> Op:
        what = op.collective
        if what is None or pieces < 2:
            return op
        part = replace(what, nbytes=max(1, what.nbytes // pieces))
        if op.seconds is None:
            return replace(op, collective=part)
        whole, each = self._price(what), self._price(part)
        share = each / whole if whole and each else 1 / pieces
        return replace(op, collective=part, seconds=op.seconds * share)

    def _piece(self, bucket: int, pieces: int, place: int) -> Op:
        """Return an earlier piece, behind the last op of each stream that the bucket waits for."""
        op, ops = self._step.ops[bucket], self._step.ops
        streams = {ops[each].stream for each in op.after}
        after = []
        for stream in streams:
            before = reversed(range(place))
            front = (n for n in before if ops[n].stream == stream and n in self._place)
            after += [self._place[n] for n in islice(front, 1)]
        # The piece is a new call of the host; its bucket keeps the recorded overhead, waiting and
        # pause.
        host = None if op.host is None else _CALL
        made = replace(self._part(op, pieces), host=host, waiting=0.0, pause=0.0, blocking=False)
        return replace(made, after=tuple(sorted(after)))
