"""Choices in words: one line for what was chosen, and one for each alternative."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.planner.plan import Alternative, Choice
from weft.timeline.kernel_names import short_name
from weft.units import format_size, format_time

if TYPE_CHECKING:
    from weft.planner.candidates import Candidate, CollectiveGroup
    from weft.planner.evaluation import StepEvaluator
    from weft.planner.search import Search
    from weft.step import StepRun

_LONGEST = 40  # letters of a kernel in the name of a pair
_HIDDEN = 0.95  # of a collective's time: all of it, as far as a step can tell


class Explainer:
    """Writes down the choices of one step."""

    def __init__(self, search: Search, evaluator: StepEvaluator, chosen: list[Candidate]) -> None:
        self._search, self._evaluator, self._chosen = search, evaluator, chosen
        self._base, self._planned = search.run(search.base), search.run(chosen)

    def choices(self, whole: float) -> list[Choice]:
        """Write down all choices: the gain of each is what the planned step loses without it."""
        search, planned = self._search, self._search.seconds(self._chosen)
        found = []
        for number, options in enumerate(search.options):
            saved = search.changed(self._chosen, number, options.base) - planned
            found.append(self.choice(number, max(0.0, saved / whole) if whole else 0.0))
        return found

    def choice(self, number: int, gain: float) -> Choice:
        """Write down what was chosen for a group."""
        candidate, group = self._chosen[number], self._search.options[number].group
        alone, seconds = candidate.alone, self._mean(self._planned, group)
        first = group.members[0]
        return Choice(
            pair=name_of(group),
            op=first[1],
            collective=group.what,
            strategy=candidate.strategy,
            seconds=seconds,
            low=seconds * alone.low / alone.seconds if alone.seconds else seconds,
            high=seconds * alone.high / alone.seconds if alone.seconds else seconds,
            gain=gain,
            why=self._why(number, candidate),
            alternatives=self._alternatives(number),
            step=first[0],
            ops=tuple(n for rank_class, n in group.members if rank_class == first[0]),
            phase=group.phase,
        )

    def _why(self, number: int, candidate: Candidate) -> str:
        """Return what decided: the duration of a candidate, and that of the kernels next to it."""
        options, run = self._search.options[number], self._planned
        if candidate == options.base:
            if options.group.hidden > _HIDDEN:
                return "already hidden by the kernels that run next to it"
            if any(
                each.alone.seconds < 0.99 * candidate.alone.seconds for each in options.candidates
            ):
                return "the step does not wait for it: a faster alternative gains nothing"
            return "nothing that can be executed here is faster"
        parts = [candidate.why] if candidate.why else []
        before, after = self._mean(self._base, options.group), self._mean(run, options.group)
        if not candidate.slices and after < 0.99 * before:
            parts.append(f"{format_time(after)} instead of {format_time(before)}")
        slower = self._evaluator.slowdown(self._base, options.group)
        mine = self._evaluator.slowdown(run, options.group)
        # Smaller differences mostly print as the same percentage.
        if abs(slower - mine) > 0.002 and not candidate.exclusive:
            parts.append(f"kernels next to it {_slower(mine)}, not {_slower(slower)}")
        if saves := self._saves(number):
            parts.append(saves)
        return "; ".join(parts) or "the step is shorter with it"

    def _saves(self, number: int) -> str:
        """Return what the planned step would be longer without a choice: kernels, and the rest."""
        search, chosen = self._search, self._chosen
        without = list(chosen)
        without[number] = search.options[number].base
        other = search.run(without)
        saved = other.seconds - self._planned.seconds
        if saved <= 0.001 * self._planned.seconds:  # the last printed digit of a percentage
            return ""
        kernels, of = self._evaluator.kernel_seconds, f"saves {format_time(saved)}"
        shorter = kernels(other) - kernels(self._planned)
        if shorter > 0.95 * saved:
            return f"{of} of kernels"
        if shorter < 0.05 * saved:
            return f"{of} of waiting for collectives and the host"
        return f"{of}, {format_time(shorter)} of them of kernels"

    def _mean(self, run: StepRun, group: CollectiveGroup) -> float:
        """Return the mean duration of a group's collectives, waiting for other ranks left out."""
        found = []
        for place in group.members:
            start, end = run.span(place)
            found.append(end - start - run.engine.waiting(place))
        return sum(found) / len(found)

    def _alternatives(self, number: int) -> tuple[Alternative, ...]:
        """List the others with the step they make, the best of each strategy first.

        All other groups are carried out as planned. What is infeasible comes last.
        """
        search, options, chosen = self._search, self._search.options[number], self._chosen[number]
        mine = search.seconds(self._chosen)
        priced = sorted(
            (
                (search.changed(self._chosen, number, each), each)
                for each in (options.base, *options.candidates)
            ),
            key=lambda item: item[0],
        )
        best: dict[object, tuple[float, Candidate]] = {}
        for seconds, each in priced:
            if each != chosen:
                best.setdefault((each.strategy.name, each.strategy.backend), (seconds, each))
        return (
            *(
                Alternative(each.strategy, seconds, _not(seconds, mine))
                for seconds, each in best.values()
            ),
            *options.infeasible,
        )


def name_of(group: CollectiveGroup) -> str:
    """Return the name of a group: its collective and what overlaps it."""
    what = group.what
    text = f"{what.kind} {format_size(what.nbytes)}"
    if what.group != "world":
        text += f" of {what.group}"
    if group.phase:
        text += f", {group.phase}"
    if group.overlapped:
        return f"{text}, overlapped with {_brief(group.overlapped)}"
    return f"{text}, after {_brief(group.produced_by)}" if group.produced_by else text


def _brief(name: str) -> str:
    """Return the name of a kernel such that a table has room for it."""
    found = short_name(name)
    return found if len(found) <= _LONGEST else found[: _LONGEST - 1] + "…"


def _slower(times: float) -> str:
    return f"{100 * (times - 1):.0f} % slower" if times >= 1.005 else "as fast as alone"


def _not(seconds: float, mine: float) -> str:
    if seconds > mine * 1.0001:
        return f"the step is {format_time(seconds - mine)} longer"
    return "no faster, and asks for more"
