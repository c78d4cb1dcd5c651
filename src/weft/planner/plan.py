"""A plan: the strategy of each pair of a step, what it gains and why, as a file that says for what.

A plan names what it was made for by a fingerprint: the ops of the workload, and the platform by
its device and the shape of its network. Rates are no part of it, so a machine that was calibrated
again is still the same machine.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import msgspec

from weft.errors import FormatError, PlanError
from weft.hardware.software_stack import SoftwareStack
from weft.result_tables import ResultTables, Tables
from weft.schedule.strategy import Strategy
from weft.step.step_graph import Collective
from weft.units import brief, format_time

if TYPE_CHECKING:
    from pathlib import Path

    from weft.hardware import Platform
    from weft.step import StepGraph

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Alternative:
    """What a pair could do instead: seconds of the step, None if infeasible, and the reason."""

    strategy: Strategy
    seconds: float | None
    why: str

    @property
    def refused(self) -> bool:
        """Whether it cannot be done at all here."""
        return self.seconds is None


@dataclass(frozen=True, slots=True)
class Choice:
    """What a pair does. ``op`` is the first of ``ops``, all equal, in step ``step`` of a workload.

    ``seconds`` is the pair by itself: the collective and what can overlap it, with a range.
    ``gain`` is the share of the unplanned step that this choice alone saves.
    """

    __repr__ = brief

    pair: str
    op: int | None
    collective: Collective
    strategy: Strategy
    seconds: float
    low: float
    high: float
    gain: float
    why: str
    alternatives: tuple[Alternative, ...] = ()
    step: int = 0
    ops: tuple[int, ...] = ()
    phase: str = ""

    def as_row(self) -> dict[str, Any]:
        """Return it under the keys that ``weft plan`` has."""
        return {
            "pair": self.pair,
            **self.strategy.as_row(),
            "times": max(1, len(self.ops)),
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            "gain": self.gain,
            "why": self.why,
            "alternatives": [
                each.strategy.as_row() | {"seconds": each.seconds, "why": each.why}
                for each in self.alternatives
            ],
            "basis": "predicted",
        }


@dataclass(frozen=True, slots=True)
class Limits:
    """What a plan keeps to: the error that codecs may make, engines and bytes that it may use.

    ``error`` is the relative L2 error of what is sent; 0 allows only what loses nothing. Without
    ``codecs`` all that are known are looked at. None: as many as the platform has. On GPUs only
    what ``stack`` can execute is a candidate; versions that it does not name are assumed. With
    ``hypothetical`` it is not asked: what-if changes need no engine that carries them out.
    """

    error: float = 0.0
    codecs: tuple[str, ...] = ()
    engines: int | None = None
    memory: int | None = None
    stack: SoftwareStack = field(default_factory=SoftwareStack)
    hypothetical: bool = False


@dataclass(frozen=True, slots=True)
class Plan(ResultTables):
    """Choices for a step, and its seconds without and with them."""

    workload: str
    platform: str
    num_ranks: int
    choices: tuple[Choice, ...]
    baseline: float
    planned: float
    low: float
    high: float
    fingerprint: str
    budget: Limits = Limits()
    mode: str = "heuristic"
    notes: tuple[str, ...] = field(default=())

    def __repr__(self) -> str:
        what = f"{self.workload} on {self.num_ranks} ranks of {self.platform}"
        steps = f"{format_time(self.baseline)} without it, {format_time(self.planned)} with it"
        return f"<Plan of {what}: {steps}, {len(self.choices)} choices, predicted>"

    @property
    def gain(self) -> float:
        """The share of the step that the plan saves."""
        return 1 - self.planned / self.baseline if self.baseline else 0.0

    @property
    def speedup(self) -> float:
        """How many times as fast the planned step is."""
        return self.baseline / self.planned if self.planned else 1.0

    def totals(self) -> dict[str, Any]:
        """Return the figures of all choices together, under the keys of ``weft plan --json``."""
        names = ("workload", "baseline", "planned", "low", "high", "gain", "mode")
        found = {name: getattr(self, name) for name in names}
        return found | {
            "ranks": self.num_ranks,
            "notes": list(self.notes),
            "basis": "predicted",
        }

    def tables(self) -> Tables:
        """Return the tables of a plan: its choices, their alternatives, the whole step."""
        return {
            "choices": lambda: [choice.as_row() for choice in self.choices],
            "alternatives": lambda: [
                {"pair": choice.pair, **each}
                for choice in self.choices
                for each in choice.as_row()["alternatives"]
            ],
            "step": lambda: [self.totals()],
        }

    def check_for(self, graph: StepGraph, platform: Platform) -> None:
        """Raise if applied to another workload, platform or number of ranks."""
        if graph.num_ranks != self.num_ranks:
            raise PlanError(
                f"this plan is for {self.num_ranks} ranks, not {graph.num_ranks}", self._again
            )
        if fingerprint(graph, platform) == self.fingerprint:
            return
        mine, other = self.fingerprint.split("-"), fingerprint(graph, platform).split("-")
        if mine[-1] != other[-1]:
            what = f"platform {self.platform}, not for {platform.name}"
            if self.platform == platform.name:
                what = f"another {platform.name}: its device or network differs"
            raise PlanError(f"this plan is for {what}", self._again)
        what = f"workload {self.workload}, not for {graph.name}"
        if self.workload == graph.name:
            what = f"another {graph.name}: its ops differ"
        raise PlanError(f"this plan is for {what}", self._again)

    @property
    def _again(self) -> str:
        return "Make one for it with weft plan."

    def to_json(self) -> bytes:
        """Write it so that ``Plan.from_json`` reads the same."""
        plan = msgspec.to_builtins(self)
        for choice, row in zip(self.choices, plan["choices"], strict=True):
            row.update(choice.strategy.as_row())
            for other, line in zip(choice.alternatives, row["alternatives"], strict=True):
                line.update(other.strategy.as_row())
        found = msgspec.json.encode({"weft_plan": _FORMAT, "plan": plan})
        return msgspec.json.format(found, indent=1) + b"\n"

    @staticmethod
    def from_json(text: bytes | str) -> Plan:
        """Read what ``to_json`` wrote, and check it."""
        try:
            found = msgspec.json.decode(text, type=_File)
            if found.weft_plan != _FORMAT:
                raise FormatError(
                    f"this plan is of version {found.weft_plan}, known is {_FORMAT}",
                    "Make it again with this version of weft.",
                )
            return msgspec.convert(_with_strategies(found.plan), Plan)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise FormatError(f"not a plan file: {error}", "weft plan -o writes one.") from error


class _File(msgspec.Struct):
    weft_plan: int
    plan: Any


class _StrategyRow(msgspec.Struct):
    strategy: str
    settings: dict[str, str | int] = {}


def _with_strategies(plan: Any) -> Any:
    """Join the name and the settings of strategies, which files have side by side."""

    def joined(row: Any) -> Any:
        found = msgspec.convert(row, _StrategyRow)
        return row | {"strategy": Strategy.of(found.strategy, found.settings)}

    def whole(choice: Any) -> Any:
        others = choice.get("alternatives", []) if isinstance(choice, dict) else []
        if not isinstance(others, list):
            return choice  # refused where its fields are read
        return joined(choice) | {"alternatives": [joined(each) for each in others]}

    choices = plan.get("choices") if isinstance(plan, dict) else None
    if not isinstance(choices, list):
        return plan
    return plan | {"choices": [whole(each) for each in choices]}


def read_plan(path: Path) -> Plan:
    """Read a plan file."""
    try:
        return Plan.from_json(path.read_bytes())
    except OSError as error:
        raise FormatError(f"cannot read {path}: {error.strerror}") from error


def fingerprint(graph: StepGraph, platform: Platform) -> str:
    """Return what a plan is for, as one word: one part for the ops, one for the platform."""
    same = replace(graph, source="", unsupported=(), name="").to_json()
    for later in _LATER_FIELDS:  # so that plans of before still fit the steps that they were for
        same = same.replace(later, b"")
    device = platform.device.name if platform.device is not None else ""
    shape = platform.name, device, [(level.kind, level.size) for level in platform.levels]
    return f"{_digest(same)}-{_digest(msgspec.json.encode(shape))}"


# Fields of ops that were added after the first plans were written, as they stand when unused.
_LATER_FIELDS = (
    b',"waiting":0.0,"pause":0.0',
    b',"implementation":"","scale":1.0',
    b',"copies":0',
    b',"recomputed":false',
    b',"recomputed":true',  # it says what a host takes, not what an op does
)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]
