"""The comparison of two steps: what changed, whether it is more than noise, and why.

A side is one predicted step or all recorded steps of a trace. Ops are compared by name: how often
they run in a step, for how long, and how much of it is exposed. If both sides have several steps,
a difference is significant if Welch's t-test says so, corrected for the number of names compared,
and if it is more than 0.2 % of the step.

::

    step = compute + exposed communication + idle
           |         |                       `- by reason
           |         `- by collective: waiting, moving
           `- by family of kernels: the same ones slower, or others than before
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from weft.result_tables import ResultTables, Tables
from weft.timeline.kernel_names import short_name
from weft.timeline.step_profile import OpKind, StepProfile
from weft.timeline.welch import MeanDifference, compare_means
from weft.units import format_time

LITTLE = 0.002  # fraction of the step: smaller differences do not matter
_LARGE = 0.02  # fraction of the step: mentioned although one step on a side shows no spread
_MOST_CAUSES = 5
_MOST_OF = 0.6  # of a difference: what explains that much is its cause
PARTS = ("step", "compute", "communication", "exposed", "waiting", "moving", "idle")


@dataclass(frozen=True)
class StepSide:
    """One side of a comparison: its steps, and further parts of them if it was recorded.

    ``parts`` has one value per step for names of ``PARTS``; those that are missing come from the
    profiles. ``idle`` has the mean idle seconds of a step by reason.
    """

    label: str
    profiles: tuple[StepProfile, ...]
    parts: Mapping[str, Sequence[float]] = field(default_factory=dict)
    idle: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, profile: StepProfile) -> StepSide:
        """Return a side of one step."""
        return cls(profile.label, (profile,))

    @property
    def typical(self) -> StepProfile:
        """The step whose duration is closest to the mean."""
        mean = fmean(profile.seconds for profile in self.profiles)
        return min(self.profiles, key=lambda profile: abs(profile.seconds - mean))

    def part(self, name: str) -> list[float] | None:
        """Return the seconds of a part in every step; None if they are unknown."""
        if name in self.parts:
            return list(self.parts[name])
        if name in ("waiting", "moving"):
            return None
        return [profile.totals[name] for profile in self.profiles]


@dataclass(frozen=True, slots=True)
class OpChange:
    """How the ops of one name changed: count, duration and exposed time of a mean step.

    ``significant`` is None if a side has one step, so that there is no spread to compare with.
    """

    name: str
    kind: OpKind
    count: tuple[float, float]
    seconds: tuple[float, float]
    exposed: tuple[float, float]
    family: str = ""
    matched: int = 0  # ops that both sides have
    slower: float = 0.0  # seconds that the matched ones took longer
    p: float | None = None
    significant: bool | None = None

    @property
    def difference(self) -> float:
        """The increase in seconds."""
        return self.seconds[1] - self.seconds[0]

    def as_row(self) -> dict[str, Any]:
        """Return a row with the keys of ``weft diff``."""
        return {
            "name": self.name,
            "kind": self.kind,
            "family": self.family,
            "count_before": _whole(self.count[0]),
            "count_after": _whole(self.count[1]),
            "before": self.seconds[0],
            "after": self.seconds[1],
            "difference": self.difference,
            "exposed_before": self.exposed[0],
            "exposed_after": self.exposed[1],
            "p": self.p,
            "significant": self.significant,
        }


@dataclass(frozen=True, slots=True)
class PartChange:
    """How a part of the step changed."""

    name: str
    before: float
    after: float
    p: float | None = None
    significant: bool | None = None

    @property
    def difference(self) -> float:
        """The increase in seconds."""
        return self.after - self.before

    def as_row(self) -> dict[str, Any]:
        """Return a row of JSON."""
        return {
            "name": self.name,
            "before": self.before,
            "after": self.after,
            "difference": self.difference,
            "p": self.p,
            "significant": self.significant,
        }


@dataclass(frozen=True)
class StepDiff(ResultTables):
    """Two sides and their differences, the largest first; causes and notes are sentences."""

    sides: tuple[StepSide, StepSide]
    parts: tuple[PartChange, ...]
    changes: tuple[OpChange, ...]
    causes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<StepDiff of {self.before.label} and {self.after.label}>"

    def tables(self) -> Tables:
        """Return the tables of a diff: parts of the step, then ops."""
        return {
            "parts": lambda: [part.as_row() for part in self.parts],
            "changes": lambda: [change.as_row() for change in self.changes],
        }

    @property
    def before(self) -> StepProfile:
        """The typical step before."""
        return self.sides[0].typical

    @property
    def after(self) -> StepProfile:
        """The typical step after."""
        return self.sides[1].typical

    @property
    def step(self) -> PartChange:
        """How the mean step changed."""
        return self.parts[0]

    @property
    def matched(self) -> float:
        """The fraction of the ops of both that have a counterpart in the other."""
        both = sum(2 * min(change.count) for change in self.changes)
        return both / max(1.0, sum(sum(change.count) for change in self.changes))

    @property
    def is_tested(self) -> bool:
        """Whether both sides have several steps, so that significance is known."""
        return self.step.significant is not None


def diff(before: StepProfile, after: StepProfile) -> StepDiff:
    """Compare two profiles of the same step."""
    return diff_sides(StepSide.of(before), StepSide.of(after))


def diff_sides(before: StepSide, after: StepSide) -> StepDiff:
    """Compare two sides."""
    sides = (before, after)
    parts = tuple(_parts(before, after))
    least = LITTLE * max(parts[0].before, parts[0].after)
    sums = [[_by_name(profile) for profile in side.profiles] for side in sides]
    names = list(dict.fromkeys(name for side in sums for step in side for name in step))
    changes = sorted(
        (_change(name, sums, len(names), least) for name in names),
        key=lambda each: -abs(each.difference),
    )
    return StepDiff(sides, parts, tuple(changes), tuple(_causes(sides, parts, changes)))


def _parts(before: StepSide, after: StepSide) -> Iterator[PartChange]:
    for name in PARTS:
        one, other = before.part(name), after.part(name)
        if one and other:
            means = compare_means(one, other)
            yield PartChange(name, means.before, means.after, means.p, _verdict(means, len(PARTS)))


def _verdict(means: MeanDifference, tests: int, least: float = 0.0) -> bool | None:
    if means.p is None:
        return None
    return means.is_significant(tests) and abs(means.difference) > least


@dataclass
class _Sum:
    """The ops of one name in one step."""

    kind: OpKind
    family: str = ""
    times: list[float] = field(default_factory=list)  # in order of start
    exposed: float = 0.0


def _by_name(profile: StepProfile) -> dict[str, _Sum]:
    found: dict[str, _Sum] = {}
    for op, exposed in zip(profile.ops, profile.exposed, strict=True):
        name = f"{op.name} {op.shape}" if op.shape else op.name
        each = found.setdefault(name, _Sum(op.kind, op.family))
        each.times.append(op.seconds)
        each.exposed += exposed
    return found


def _change(
    name: str, sums: Sequence[Sequence[dict[str, _Sum]]], tests: int, least: float
) -> OpChange:
    have = [[step[name] for step in side if name in step] for side in sums]
    first = next(each for side in have for each in side)
    seconds = [[sum(step[name].times) if name in step else 0.0 for step in side] for side in sums]
    means = compare_means(*seconds)
    orders = [_mean_order(side) for side in have]
    pairs = list(zip(*orders, strict=False))  # the k-th of a name and shape before and after
    counts, exposed = (
        tuple(
            sum(value(each) for each in side) / len(steps)
            for side, steps in zip(have, sums, strict=True)
        )
        for value in (lambda each: float(len(each.times)), lambda each: each.exposed)
    )
    return OpChange(
        name,
        first.kind,
        (counts[0], counts[1]),
        (means.before, means.after),
        (exposed[0], exposed[1]),
        first.family,
        len(pairs),
        sum(other - one for one, other in pairs),
        means.p,
        _verdict(means, tests, least),
    )


def _mean_order(steps: Sequence[_Sum]) -> list[float]:
    """Return the mean duration of the k-th op of a name, over the steps that have so many."""
    most = max((len(each.times) for each in steps), default=0)
    return [fmean(each.times[k] for each in steps if k < len(each.times)) for k in range(most)]


def _causes(
    sides: tuple[StepSide, StepSide], parts: Sequence[PartChange], changes: Sequence[OpChange]
) -> Iterator[str]:
    """Yield sentences on what changed the step, the largest contribution first."""
    step = parts[0]
    least = LITTLE * max(step.before, step.after)
    if step.significant is None:
        least = _LARGE * max(step.before, step.after)
    found = [
        *_compute_causes(changes),
        *_communication_causes(changes, parts),
        *_idle_causes(sides, parts),
    ]
    found = [each for each in found if abs(each[0]) > least]
    found.sort(key=lambda each: -abs(each[0]))
    yield from (text for _, text in found[:_MOST_CAUSES])


def _compute_causes(changes: Sequence[OpChange]) -> Iterator[tuple[float, str]]:
    """Yield changes of families of kernels: the same ones slower, or others than before."""
    families: dict[str, list[OpChange]] = defaultdict(list)
    for change in changes:
        if change.kind == "compute":
            families[change.family or change.name].append(change)
    for family, members in families.items():
        sure = [each for each in members if each.significant is not False]
        total = sum(each.difference for each in sure)
        slower = sum(each.slower for each in sure)
        before = sum(each.seconds[0] for each in sure)
        if not sure or not total:
            continue
        largest = max(sure, key=lambda each: abs(each.difference))
        if abs(slower) >= _MOST_OF * abs(total) and before > 0:
            count = sum(each.matched for each in sure)
            same = "kernel takes" if count == 1 else f"{count} kernels take"
            why = f"the same {same} {(before + slower) / before:.2f} times as long"
        else:
            more = sum(each.count[1] - each.count[0] for each in sure)
            why = f"{_count(abs(more))} kernels {'more' if more > 0 else 'fewer'} in a step"
            if abs(more) < 0.5:
                why = "other kernels do the work"
        most = "" if largest.name == family else f"; most of it in {_named(largest)}"
        yield total, f"{family}: {_signed(total)} a step, {why}{most}"


def _communication_causes(
    changes: Sequence[OpChange], parts: Sequence[PartChange]
) -> Iterator[tuple[float, str]]:
    known = {part.name: part for part in parts}
    exposed = known.get("exposed")
    if exposed is None or exposed.significant is False:
        return
    moved = [each for each in changes if each.kind == "communication"]
    open_ = [(each.exposed[1] - each.exposed[0], each) for each in moved]
    most = max(open_, key=lambda each: abs(each[0]), default=None)
    where = f"; most of it in {_named(most[1])}" if most and abs(most[0]) > 0 else ""
    why = ""
    if "waiting" in known and "moving" in known:
        waits, moves = known["waiting"].difference, known["moving"].difference
        why = (
            f", waiting for other ranks {_signed(waits)}, moving bytes {_signed(moves)} "
            "(overlapped time included)"
        )
    text = f"exposed communication: {_signed(exposed.difference)} a step{why}{where}"
    yield exposed.difference, text


def _idle_causes(
    sides: tuple[StepSide, StepSide], parts: Sequence[PartChange]
) -> Iterator[tuple[float, str]]:
    idle = next((part for part in parts if part.name == "idle"), None)
    if idle is None or idle.significant is False:
        return
    one, other = sides[0].idle, sides[1].idle
    reasons = {name: other.get(name, 0.0) - one.get(name, 0.0) for name in {*one, *other}}
    most = max(reasons, key=lambda name: abs(reasons[name]), default="")
    why = f", mostly {most} ({_signed(reasons[most])})" if most else ""
    yield idle.difference, f"idle device: {_signed(idle.difference)} a step{why}"


def _named(change: OpChange) -> str:
    return short_name(change.name)


def _signed(seconds: float) -> str:
    return f"{format_time(abs(seconds))} {'more' if seconds >= 0 else 'less'}"


def _count(number: float) -> str:
    return f"{number:.0f}" if number >= 1 else f"{number:.1f}"


def _whole(count: float) -> float | int:
    return round(count) if abs(count - round(count)) < 1e-9 else count
