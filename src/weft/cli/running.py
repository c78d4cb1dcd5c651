"""Runs a collective between processes on this machine, checks its values, and predicts it.

The inputs and expected outputs of every rank are computed by numpy.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.calibration.microbenchmarks import Round, batches, pin, slowest, typical
from weft.cli.collective_pricing import CollectiveQuestion, PredictedCollective, answers, result_row
from weft.cli.outputs import working
from weft.collectives import collective
from weft.collectives.catalogue import REDUCING
from weft.hardware import Platform, is_calibrated, platform
from weft.runtime import PreparedSchedule, World, prepare, spawn
from weft.schedule import Schedule
from weft.timeline import Timeline

_TIMEOUT = 60.0
Array = NDArray[Any]


def dtype_for(kind: str, nbytes: int, num_ranks: int) -> str:
    """Return float32 for reductions whose size holds whole floats per rank, otherwise uint8."""
    share = num_ranks if kind == "reduce_scatter" else 1
    return "float32" if kind in REDUCING and nbytes % (4 * share) == 0 else "uint8"


@dataclass(frozen=True, slots=True)
class Values:
    """The contents of a collective's buffers, the same on every rank.

    The numbers are small integers, so that float sums are exact in any order.
    """

    kind: str
    num_ranks: int
    nbytes: int
    dtype: str = "uint8"

    def give(self, rank: int) -> Array:
        """Return the contribution of a rank, in elements."""
        count = self.nbytes // np.dtype(self.dtype).itemsize
        values = np.random.default_rng(rank).integers(0, 64, count)
        return values.astype(self.dtype)[self._part(rank)]

    def _part(self, rank: int) -> slice:
        """Return the part of the whole that a rank contributes."""
        match self.kind:
            case "all_gather" | "gather":
                return _shares(self.nbytes, self.num_ranks)[rank]
            case "scatter" | "send_recv":
                return slice(None) if rank == 0 else slice(0, 0)
            case _:
                return slice(None)

    def start(self, schedule: Schedule, rank: int) -> dict[str, Array]:
        """Return the initial buffers of a rank by name, in bytes."""
        mine = self.give(rank).view(np.uint8)
        names = {buffer.name: buffer for buffer in schedule.buffers}
        if "in" in names:
            return {"in": mine}
        if "data" not in names:
            return {}
        data = np.zeros(names["data"].size_on(rank), np.uint8)
        place = _shares(self.nbytes, self.num_ranks)[rank]
        data[place if self.kind == "all_gather" else slice(None)] = mine
        return {"data": data}

    def want(self, rank: int) -> Array:
        """Return the expected output of a rank, in bytes."""
        return np.ascontiguousarray(self._want(rank)).view(np.uint8)

    def _want(self, rank: int) -> Array:  # noqa: PLR0911 - one case a collective
        place = _shares(self.nbytes, self.num_ranks)[rank]
        everyone = range(self.num_ranks)
        match self.kind:
            case "broadcast":
                return self.give(0)
            case "all_gather":
                return np.concatenate([self.give(r) for r in everyone])
            case "gather":
                whole = np.concatenate([self.give(r) for r in everyone])
                return whole if rank == 0 else whole[:0]
            case "scatter":
                return self.give(0)[place]
            case "all_to_all":
                return np.concatenate([self.give(r)[place] for r in everyone])
            case "send_recv":
                return self.give(0) if rank == self.num_ranks - 1 else self.give(0)[:0]
            case "all_reduce":
                return self._sum()
            case "reduce" if rank == 0:
                return self._sum()
            case "reduce_scatter":
                return self._sum().view(np.uint8)[place]
            case _:
                return np.empty(0, np.uint8)

    def _sum(self) -> Array:
        total = self.give(0)
        for rank in range(1, self.num_ranks):
            total = total + self.give(rank)
        return total


def _shares(nbytes: int, num_ranks: int) -> list[slice]:
    """Divide bytes into one part per rank, the first ones longer if they do not divide evenly."""
    each, rest = divmod(nbytes, num_ranks)
    starts = [rank * each + min(rank, rest) for rank in range(num_ranks + 1)]
    return [slice(start, stop) for start, stop in pairwise(starts)]


@dataclass(frozen=True, slots=True)
class MeasuredCollective:
    """A measurement and its prediction."""

    predicted: PredictedCollective
    seconds: float
    wrong: int
    timeline: Timeline

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Two rows: measured, with the number of wrong bytes, and predicted."""
        (predicted,) = self.predicted.rows
        row = result_row(self.predicted.question, predicted["algorithm"], self.seconds, "measured")
        chosen = {"chosen": predicted["chosen"]} if "chosen" in predicted else {}
        return [{**row, **chosen, "wrong": self.wrong}, predicted]

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """The timelines that can be drawn: measured above predicted."""
        return (self.timeline, self.predicted.timeline)

    @property
    def schedule(self) -> Schedule:
        """The schedule that was run."""
        return _Work.of(self.predicted).schedule()


def here(on: str | None, num_ranks: int) -> Platform:
    """Return the platform that this machine is compared with, with ``num_ranks`` ranks.

    That is ``here`` after a calibration and ``cpu`` before. Ranks beyond its cores are predicted as
    if each had one.
    """
    found = platform(on or ("here" if is_calibrated() else "cpu"))
    if on in (None, "here") and num_ranks > found.num_ranks and len(found.levels) == 1:
        return replace(found, levels=(replace(found.levels[0], size=num_ranks),))
    return found.resized(num_ranks)


def measured(
    questions: Sequence[CollectiveQuestion], words: Sequence[str]
) -> list[MeasuredCollective]:
    """Run each question by each algorithm, all in one set of processes."""
    asked = [found for question in questions for found in answers(question, words, ahead=False)]
    if not asked:
        return []
    work = [_Work.of(found) for found in asked]
    num_ranks = questions[0].num_ranks
    with working(f"running {len(work)} cases on {num_ranks} processes"):
        by_rank = spawn(rank_main, num_ranks, work, timeout=_TIMEOUT)
    return [
        _joined(found, outcomes)
        for found, outcomes in zip(asked, zip(*by_rank, strict=True), strict=True)
    ]


class _Work(NamedTuple):
    """The work of a rank."""

    algorithm: str
    node_size: int | None
    values: Values

    @classmethod
    def of(cls, found: PredictedCollective) -> "_Work":
        question = found.question
        dtype = dtype_for(question.kind, question.nbytes, question.num_ranks)
        values = Values(question.kind, question.num_ranks, question.nbytes, dtype)
        return cls(found.chosen, question.node_size, values)

    def schedule(self) -> Schedule:
        values = self.values
        options = {"dtype": values.dtype} if values.kind in REDUCING else {}
        return collective(
            values.kind,
            self.algorithm,
            num_ranks=values.num_ranks,
            nbytes=values.nbytes,
            node_size=self.node_size,
            **options,
        )


class _Outcome(NamedTuple):
    """The result of one rank: seconds of each batch, wrong bytes, and on rank 0 all spans."""

    batches: tuple[Round, ...]
    wrong: int
    timeline: Timeline | None


def rank_main(world: World, work: list[_Work]) -> list[_Outcome]:
    """Do the work of one rank, on its own core if there are enough."""
    if world.num_ranks <= len(os.sched_getaffinity(0)):
        pin(world)
    return [_do(world, each) for each in work]


def _do(world: World, work: _Work) -> _Outcome:
    schedule = work.schedule()
    with prepare(schedule, world) as prepared:
        prepared.load(work.values.start(schedule, world.rank))
        world.barrier()
        timeline = prepared.run(timeline=True)
        wrong = _wrong(prepared, work.values, world.rank)
        world.barrier()
        found = batches(world, prepared.run)
    return _Outcome(tuple(found), wrong, timeline if world.rank == 0 else None)


def _wrong(prepared: PreparedSchedule, values: Values, rank: int) -> int:
    """Return the number of bytes that differ from numpy's result."""
    names = {buffer.name for buffer in prepared.schedule.buffers}
    result = next((name for name in ("out", "data") if name in names), None)
    if result is None:
        return 0
    return int(np.count_nonzero(prepared.buffer(result) != values.want(rank)))


def _joined(found: PredictedCollective, outcomes: Sequence[_Outcome]) -> MeasuredCollective:
    """Take the slowest rank of each batch, and the median of these."""
    seconds = typical(slowest(each.batches for each in outcomes))
    timeline = outcomes[0].timeline
    assert timeline is not None
    wrong = sum(each.wrong for each in outcomes)
    return MeasuredCollective(found, seconds, wrong, timeline)
