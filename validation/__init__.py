"""Published figures compared with what weft computes, one group of figures per file.

``python -m validation`` computes them, as ``weft validate`` does in a checkout.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Protocol

from validation.target import Target
from weft.errors import UnknownNameError, nearest
from weft.report.svg import Chart

__all__ = ["Group", "Target", "find_group", "group_names"]


class Figures(Protocol):
    """What the file of a group holds; a long one has ``PARTS`` and ``targets_of(part)`` too."""

    def targets(self) -> Iterator[Target]:
        """Compute the figures, one after another."""


@dataclass(frozen=True, slots=True)
class Group:
    """Figures of one origin, and the question that they answer together."""

    name: str
    question: str
    figures: Figures

    def targets(self) -> Iterator[Target]:
        """Compute the figures, one after another."""
        return self.figures.targets()

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that may be computed side by side, in order; "" is all of the group."""
        parts: tuple[str, ...] = getattr(self.figures, "PARTS", ("",))
        return parts

    def targets_of(self, part: str) -> Iterator[Target]:
        """Compute the figures of a part."""
        if not part:
            return self.targets()
        compute: Callable[[str], Iterator[Target]] = self.figures.targets_of  # type: ignore[attr-defined]
        return compute(part)

    def plots(self) -> dict[str, Chart]:
        """Draw what the group draws, by name."""
        draw: Callable[[], dict[str, Chart]] = getattr(self.figures, "plots", dict)
        return draw()


def group_names() -> tuple[str, ...]:
    """Return the groups: every file of this folder that states its ``NAME``."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return tuple(path.stem for path in files if "\nNAME = " in path.read_text(encoding="utf-8"))


def find_group(name: str) -> Group:
    """Return the group of that name."""
    names = group_names()
    if name not in names:
        raise UnknownNameError(f"unknown group of figures {name!r}", nearest(name, names))
    module = import_module(f"validation.{name}")
    return Group(module.NAME, module.QUESTION, module)
