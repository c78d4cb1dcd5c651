"""Choosing a candidate for each group of collectives by running the whole step.

Every candidate is run with all other collectives as they are: that is its price. The best of each
group are where a search starts; it changes one group at a time to what makes the step shortest,
until nothing does. Choices that do not shorten the step are reverted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.planner.candidates import Candidate, CollectiveGroup
    from weft.planner.evaluation import Chosen, StepEvaluator
    from weft.planner.plan import Alternative
    from weft.step import StepRun

# Both bound the number of simulated steps: every try runs the whole step. benchmarks/plan.py
# compares what they leave with exhaustive search (99 % of 500 steps within 2 %).
_ROUNDS = 3
_TRIED = 4  # candidates of a group that a search looks at, the best alone
_BETTER = 1 - 1e-4  # less than that is no reason to change anything


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """A group, what torch does with it, its other candidates, and what cannot be executed."""

    group: CollectiveGroup
    base: Candidate
    candidates: tuple[Candidate, ...]
    infeasible: tuple[Alternative, ...]


class Search:
    """Prices and chooses the candidates of one step."""

    def __init__(self, options: Sequence[GroupOptions], evaluator: StepEvaluator) -> None:
        self.options, self._evaluator = tuple(options), evaluator
        self.base = [each.base for each in options]
        self.base_seconds = self.seconds(self.base)

    def seconds(self, chosen: Sequence[Candidate]) -> float:
        """Return the seconds of the step."""
        return self._evaluator.seconds(self._paired(chosen))

    def run(self, chosen: Sequence[Candidate]) -> StepRun:
        """Run the step."""
        return self._evaluator.run(self._paired(chosen))

    def _paired(self, chosen: Sequence[Candidate]) -> Chosen:
        groups = (each.group for each in self.options)
        return list(zip(groups, chosen, strict=True))

    def alone(self, number: int, candidate: Candidate) -> float:
        """Return the seconds of the step with one group changed."""
        return self.changed(self.base, number, candidate)

    def changed(self, chosen: Sequence[Candidate], number: int, candidate: Candidate) -> float:
        """Return the seconds of the step with one group of ``chosen`` changed."""
        return self.seconds(self._with(chosen, number, candidate))

    def by_strategy(self, name: str) -> tuple[list[Candidate], int]:
        """Choose the best candidate of one strategy for every group that has one.

        Return the choices, and the number of groups for which the strategy is feasible.
        """
        chosen, there = list(self.base), 0
        for number, options in enumerate(self.options):
            mine = [each for each in options.candidates if each.strategy.name == name]
            if mine:
                prices = [self.alone(number, each) for each in mine]
                least = min(prices) / _BETTER  # of equals the first: rounding decides nothing
                best = next(c for c, price in zip(mine, prices, strict=True) if price <= least)
                chosen[number] = best
                there += 1
        return chosen, there

    def chosen(self, mode: str) -> list[Candidate]:
        """Choose among all candidates: each by itself, and in ``search`` mode all together."""
        found = self.greedy()
        return self.reverted(self.improved(found) if mode == "search" else found)

    def greedy(self) -> list[Candidate]:
        """Choose for each group what makes the step shortest with all others as they are."""
        return [self._ranked(number)[0] for number in range(len(self.options))]

    def improved(self, chosen: Sequence[Candidate]) -> list[Candidate]:
        """Change one group after the other to what makes the whole step shortest."""
        found = list(chosen)
        best = self.seconds(found)
        for _ in range(_ROUNDS):
            before = best
            for number in range(len(self.options)):
                # Candidates that are poor alone are rarely best in company.
                for candidate in self._ranked(number)[:_TRIED]:
                    tried = self._with(found, number, candidate)
                    seconds = self.seconds(tried)
                    if seconds < best * _BETTER:
                        best, found = seconds, tried
            if best >= before * _BETTER:
                break
        return found

    def reverted(self, chosen: Sequence[Candidate]) -> list[Candidate]:
        """Revert choices that do not shorten the step: a plan is never slower than none."""
        found = list(chosen)
        for number, base in enumerate(self.base):
            # A choice that was best before others changed may have become useless since.
            back = self._with(found, number, base)
            if self.seconds(back) * _BETTER <= self.seconds(found):
                found = back
        return found if self.seconds(found) <= self.base_seconds else list(self.base)

    def _ranked(self, number: int) -> list[Candidate]:
        """Return the candidates of a group, best alone first; of equals what changes least."""
        own = self.options[number]
        found = list(dict.fromkeys((own.base, *own.candidates)))
        limit = self.base_seconds * _BETTER

        def price(candidate: Candidate) -> float:
            seconds = self.alone(number, candidate)
            # The baseline counts as slightly shorter than it is, so ties go to it.
            return seconds if seconds < limit or candidate != own.base else limit

        return sorted(found, key=price)

    @staticmethod
    def _with(chosen: Sequence[Candidate], number: int, candidate: Candidate) -> list[Candidate]:
        return [*chosen[:number], candidate, *chosen[number + 1 :]]
