"""One published figure and what weft computes for it."""

from dataclasses import dataclass
from typing import Any, Literal

ErrorIn = Literal["percent", "points", "ratio", "value"]


@dataclass(frozen=True, slots=True)
class Target:
    """A figure: what was published, what weft says, and how far apart they may be.

    ``error_in`` says how: ``percent`` of what was published, ``points`` (the difference),
    ``ratio`` (the larger of the two over the smaller), or ``value``, where weft's number is an
    error measure itself and ``allowed`` its limit. ``fitted`` figures were used to choose
    constants and prove nothing. Without ``published`` there is nothing to compare with, unless
    the error is a value; ``allowed`` below zero means that no limit was set.
    """

    group: str
    name: str
    published: float | None
    unit: str
    source: str
    weft: float
    allowed: float = -1.0
    error_in: ErrorIn = "percent"
    fitted: bool = False
    note: str = ""

    @property
    def error(self) -> float | None:
        """How far weft is from what was published, in the unit of ``error_in``."""
        if self.error_in == "value":
            return self.weft
        if self.published is None:
            return None
        if self.error_in == "points":
            return self.weft - self.published
        if self.weft <= 0 or self.published <= 0:
            return None  # there is no proportion to speak of
        if self.error_in == "ratio":
            return max(self.weft / self.published, self.published / self.weft)
        return 100 * (self.weft / self.published - 1)

    @property
    def met(self) -> bool | None:
        """Whether the error is within what is allowed; None where no limit was set."""
        if self.allowed < 0:
            return None
        return self.error is not None and abs(self.error) <= self.allowed

    def as_row(self) -> dict[str, Any]:
        """Return the figure under the keys that every verb's results have."""
        return {
            "target": self.group,
            "scenario": self.name,
            "published": self.published,
            "weft": self.weft,
            "unit": self.unit,
            "error": self.error,
            "error_in": self.error_in,
            "tolerance": None if self.allowed < 0 else self.allowed,
            "met": self.met,
            "fitted": self.fitted,
            "citation": self.source,
            "note": self.note,
        }
