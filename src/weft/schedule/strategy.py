"""How one collective is carried out next to computation: the one type, and the table of its kinds.

c3, the planner, what-if, plan files, reports, ``weft.torch.apply`` and the knobs of GPU libraries
all read a ``Strategy``. What it does is read from the fields of its kind, never from its name. To
add a kind, add a line to the table and a module of ``weft.planner.strategies`` that lists its
candidates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from weft.errors import FormatError, UnknownNameError, nearest
from weft.units import format_size


@dataclass(frozen=True, slots=True)
class StrategyKind:
    """A line of the table: how a collective is carried out next to kernels."""

    name: str
    module: str  # of ``weft.planner.strategies``, which lists its candidates
    exclusive: bool = False  # it runs when nothing else does
    first: bool = False  # its kernel is launched, or dispatched, before those that wait
    masks: bool = False  # streams are confined to compute units
    by_engines: bool = False  # copy engines move the bytes
    sliced: bool = False  # the kernel that produces its input sends slices of it
    coded: bool = False  # what is sent passes a codec

    @property
    def of_pairs(self) -> bool:
        """Whether it only orders kernels and assigns units: the strategies of ``weft c3``."""
        return not (self.sliced or self.coded)


_TABLE = (
    StrategyKind("serial", "serial", exclusive=True),
    StrategyKind("concurrent", "concurrent"),
    StrategyKind("priority", "priority", first=True),
    StrategyKind("partition", "partition", masks=True),
    StrategyKind("priority+partition", "partition", first=True, masks=True),
    StrategyKind("dma", "dma", by_engines=True),
    StrategyKind("dma+partition", "dma", by_engines=True, masks=True),
    StrategyKind("fused", "fused", sliced=True),
    StrategyKind("compressed", "compressed", coded=True),
)
STRATEGIES = {kind.name: kind for kind in _TABLE}


@dataclass(frozen=True, slots=True)
class Strategy:
    """A kind of strategy by its name, and its settings; what is empty is left to the library."""

    name: str
    backend: str | None = None
    algorithm: str | None = None
    engines: int | None = None  # copy engines
    priority: int | None = None  # of the stream
    units: int | None = None  # in the mask of compute units
    codec: str | None = None
    bucket: int | None = None  # bytes of a gradient bucket
    fused: str | None = None  # the operator that computes and sends

    def __str__(self) -> str:
        """Return the name with its settings, as tables and pages show it.

        >>> str(Strategy("partition", units=32)), str(Strategy("concurrent", bucket=1 << 20))
        ('partition (units 32)', 'concurrent (bucket 1 MiB)')
        """
        shown = self.settings | ({"bucket": format_size(self.bucket)} if self.bucket else {})
        told = ", ".join(f"{key} {value}" for key, value in shown.items() if key != "priority")
        return f"{self.name} ({told})" if told else self.name

    @property
    def kind(self) -> StrategyKind:
        """What it does: its line of the table."""
        if self.name not in STRATEGIES:
            hint = nearest(self.name, tuple(STRATEGIES))
            raise UnknownNameError(f"unknown strategy {self.name!r}", hint)
        return STRATEGIES[self.name]

    @property
    def settings(self) -> dict[str, str | int]:
        """The fields that are set, apart from the name."""
        values = ((name, getattr(self, name)) for name in SETTINGS)
        return {name: value for name, value in values if value is not None}

    def as_row(self) -> dict[str, Any]:
        """Return it under the keys of plan files and of ``weft plan --json``."""
        return {"strategy": self.name, "settings": self.settings}

    @classmethod
    def of(cls, name: str, settings: Mapping[str, Any] | None = None) -> Strategy:
        """Read what ``as_row`` wrote; raise for a strategy or a setting that is unknown."""
        for key, value in (settings or {}).items():
            if key not in SETTINGS:
                raise FormatError(
                    f"strategy {name}: unknown setting {key!r}", nearest(key, SETTINGS)
                )
            _require_value(name, key, value)
        found = cls(name, **dict(settings or {}))
        assert found.kind is not None
        return found


SETTINGS = tuple(each.name for each in fields(Strategy) if each.name != "name")
_NUMBERS = {"engines": 1, "units": 1, "bucket": 1, "priority": -(1 << 31)}  # with the least value
_MOST = {"bucket": 1 << 62}  # of others, what an int of C holds


def _require_value(name: str, key: str, value: object) -> None:
    """Raise unless a setting has a value of its kind: it becomes a variable or code of a job."""
    if value is None:
        return
    least, most = _NUMBERS.get(key, 0), _MOST.get(key, (1 << 31) - 1)
    if key not in _NUMBERS:
        if not isinstance(value, str):
            raise FormatError(f"strategy {name}: {key} must be text (got {value!r})")
    elif isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise FormatError(
            f"strategy {name}: {key} must be a whole number from {least} to {most} (got {value!r})"
        )
