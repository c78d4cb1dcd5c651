"""Predictions of a collective on a platform, by one algorithm or by the fastest.

A library's collective is an algorithm too: ``nccl``, ``nccl-2.27.3``, ``nccl+int8``.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from weft.collectives import ENGINE_FEATURES, algorithms, collective
from weft.collectives.opaque import opaque
from weft.cost.bus import bus_factor
from weft.cost.nccl import LibraryPrice, library_price, own_seconds
from weft.errors import ScheduleError, SizeError, UsageError, WeftError
from weft.hardware import Platform
from weft.hardware.libraries import library_names
from weft.planner.prices import default_library
from weft.schedule import Schedule
from weft.simulator import energy, simulate
from weft.timeline import Timeline

AUTO = ("auto", "dma-auto")  # the fastest of all that apply, or of those on DMA engines


@dataclass(frozen=True, slots=True)
class CollectiveQuestion:
    """One collective of one size on one platform."""

    kind: str
    nbytes: int
    platform: Platform

    @property
    def num_ranks(self) -> int:
        """The number of ranks."""
        return self.platform.num_ranks

    @property
    def node_size(self) -> int | None:
        """The inner group size of two-level algorithms, if the platform has two levels."""
        platform = self.platform
        if platform.num_nodes > 1:
            return platform.node_size
        return platform.levels[0].size if len(platform.levels) > 1 else None

    def schedule(self, algorithm: str) -> Schedule:
        """Build the schedule of one algorithm, or of a library's measured collective."""
        if asked := library_algorithm(algorithm):
            return asked.schedule(self.kind, self.nbytes, self.platform)
        return collective(
            self.kind,
            algorithm,
            num_ranks=self.num_ranks,
            nbytes=self.nbytes,
            node_size=self.node_size,
        )

    def note(self, algorithm: str) -> str:
        """Return a note about a price that was measured rather than derived."""
        asked = library_algorithm(algorithm)
        return asked.price(self.kind, self.nbytes, self.platform).note if asked else ""


@dataclass(frozen=True, slots=True)
class PredictedCollective:
    """The duration of one algorithm; ``asked`` is the name it was requested by."""

    question: CollectiveQuestion
    asked: str
    chosen: str
    timeline: Timeline

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The results: one row."""
        row = result_row(self.question, self.asked, self.timeline.seconds, self.timeline.basis)
        note = self.question.note(self.chosen)
        row |= {"note": note} if note else {}
        return [row | ({"chosen": self.chosen} if self.asked in AUTO else {})]

    @property
    def energy(self) -> dict[str, float]:
        """Energy of all ranks in joules, and mean power of one in watts."""
        found = energy(self.timeline, self.question.platform)
        return {"joules": found.joules, "watts": found.watts}

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """The timelines that can be drawn."""
        return (self.timeline,)

    @property
    def schedule(self) -> Schedule:
        """The predicted schedule."""
        return self.question.schedule(self.chosen)


@dataclass(frozen=True, slots=True)
class PredictedFile:
    """The duration of a schedule file."""

    schedule: Schedule
    timeline: Timeline

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row; its size is the caller's largest buffer, as in nccl-tests."""
        seconds, nbytes = self.timeline.seconds, _largest(self.schedule)
        return [
            {
                "collective": self.schedule.name,
                "algorithm": "file",
                "nbytes": nbytes,
                "ranks": self.schedule.num_ranks,
                "seconds": seconds,
                "algbw": nbytes / seconds if seconds > 0 else None,
                "busbw": None,  # bus bandwidth depends on what the schedule is for
                "basis": self.timeline.basis,
            }
        ]

    @property
    def timelines(self) -> tuple[Timeline, ...]:
        """The timelines that can be drawn."""
        return (self.timeline,)


def _largest(schedule: Schedule) -> int:
    sizes = [b.nbytes for b in schedule.buffers if b.role != "scratch"]
    return max((s if isinstance(s, int) else max(s) for s in sizes), default=0)


def answer(
    question: CollectiveQuestion, algorithm: str, *, ahead: bool = True
) -> PredictedCollective:
    """Predict one algorithm; ``auto`` predicts every one that applies and returns the fastest.

    ``dma-auto`` returns the fastest of those that use no compute units. Without ``ahead`` nothing
    can be prelaunched, and auto skips such algorithms.
    """
    if algorithm not in AUTO:
        return _price(question, algorithm)
    engines_only = algorithm == "dma-auto"
    if engines_only:
        _needs_engines(question.platform, algorithm)
    found = [
        each
        for each in applying(question)
        if (each.chosen in ENGINE_FEATURES or not engines_only)
        and (ahead or "prelaunch" not in ENGINE_FEATURES.get(each.chosen, ()))
    ]
    if not found:
        raise UsageError(
            f"dma-auto does not apply to {question.kind}: DMA engines copy, they do not reduce",
            "Use auto, or one of all_gather and all_to_all.",
        )
    best = min(found, key=lambda each: each.timeline.seconds)
    return PredictedCollective(question, algorithm, best.chosen, best.timeline)


def library_seconds(question: CollectiveQuestion) -> tuple[str, float] | None:
    """Return what the library of the platform takes, if torch has one there that was measured."""
    platform = question.platform
    if platform.device is None or platform.device.is_core:
        return None
    name = default_library(platform)
    try:
        return name, library_price(platform, question.kind, question.nbytes, name=name).seconds
    except WeftError:
        return None


def answers(
    question: CollectiveQuestion, words: Sequence[str], *, ahead: bool = True
) -> list[PredictedCollective]:
    """Predict every named algorithm; ``all`` adds all others that apply."""
    found: list[PredictedCollective] = []
    for word in words:
        if word == "all":
            found += [each for each in applying(question) if each.asked not in words]
        else:
            found.append(answer(question, word, ahead=ahead))
    return found


def applying(question: CollectiveQuestion) -> list[PredictedCollective]:
    """Predict every algorithm that applies; raise the clearest reason if none does."""
    found: list[PredictedCollective] = []
    refusals: list[WeftError] = []
    for name in algorithms(question.kind):
        try:
            found.append(_price(question, name))
        except (UsageError, ScheduleError) as refusal:
            refusals.append(refusal)
    if not found:
        raise _clearest(refusals, question)
    return found


def _price(question: CollectiveQuestion, algorithm: str) -> PredictedCollective:
    _needs_engines(question.platform, algorithm)
    schedule = question.schedule(algorithm)
    return PredictedCollective(
        question, algorithm, algorithm, simulate(schedule, question.platform)
    )


def _needs_engines(platform: Platform, algorithm: str) -> None:
    """Raise if the platform lacks the engines, or one host does not reach all ranks."""
    if algorithm not in ENGINE_FEATURES and algorithm != "dma-auto":
        return
    if platform.device is None or platform.device.dma is None:
        raise UsageError(
            f"{algorithm!r} does not apply to {platform.name}, which has no DMA engines",
            "Use a platform with engines such as mi300x-8, or another algorithm.",
        )
    if why := platform.device.feature_refusal(ENGINE_FEATURES.get(algorithm, ())):
        raise UsageError(
            f"{algorithm!r} does not apply to {platform.name}: {why}",
            "Use dma, dma-b2b, or a platform such as mi300x-8.",
        )
    if platform.num_nodes > 1:
        raise UsageError(
            f"{algorithm!r} does not apply to {platform.name}: one host submits for one node only",
            f"Use at most {platform.node_size} ranks, or another algorithm.",
        )


def _clearest(refusals: list[WeftError], question: CollectiveQuestion) -> WeftError:
    for refusal in refusals:
        if isinstance(refusal, SizeError):
            return refusal
    return refusals[0] if refusals else UsageError(f"no algorithm applies to {question.kind}")


def result_row(
    question: CollectiveQuestion, algorithm: str, seconds: float, basis: str
) -> dict[str, Any]:
    """Return a result row with both bandwidths, as nccl-tests defines them."""
    rate = question.nbytes / seconds if seconds > 0 else None
    factor = bus_factor(question.kind, question.num_ranks)
    return {
        "collective": question.kind,
        "algorithm": algorithm,
        "nbytes": question.nbytes,
        "ranks": question.num_ranks,
        "seconds": seconds,
        "algbw": rate,
        "busbw": None if rate is None else rate * factor,
        "basis": basis,
    }


_SPEC = re.compile(r"([a-z]+)(?:-(\d+(?:\.\d+)*(?:rc\d+|\.post\d+)?))?(?:\+([a-z0-9]+))?")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int8")


@dataclass(frozen=True, slots=True)
class LibraryAlgorithm:
    """A library, its version (default: the newest measured one), and a dtype."""

    name: str
    version: str | None = None
    dtype: str = "float16"

    def price(self, kind: str, nbytes: int, platform: Platform) -> LibraryPrice:
        """Return the duration of one collective, with notes."""
        return library_price(
            platform, kind, nbytes, name=self.name, version=self.version, dtype=self.dtype
        )

    def schedule(self, kind: str, nbytes: int, platform: Platform) -> Schedule:
        """Build it as a schedule of one opaque kernel per rank."""
        seconds = own_seconds(platform, self.price(kind, nbytes, platform))
        return opaque(self.name, kind, platform.num_ranks, nbytes, seconds=seconds)


def library_algorithm(algorithm: str) -> LibraryAlgorithm | None:
    """Parse the name of an algorithm, if it is a library's."""
    match = _SPEC.fullmatch(algorithm)
    if match is None or match[1] not in library_names():
        return None
    dtype = match[3] or "float16"
    if dtype not in DTYPES:
        raise UsageError(
            f"{match[1]}: no measurements for dtype {dtype!r}", f"Use one of {', '.join(DTYPES)}."
        )
    return LibraryAlgorithm(match[1], match[2], dtype)
