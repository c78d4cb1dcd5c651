"""The cells of a sweep: a command of one verb, with one value of every list."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.errors import UsageError
from weft.units import parse_sizes

if TYPE_CHECKING:
    from collections.abc import Sequence

# Options whose values may be lists: those that are sizes may be ranges too.
SIZES = ("--size", "--block")
LISTS = (
    *("--on", "--ranks", "--algorithm", "--strategy", "--collective", "--gemm", "--fetch"),
    *("--hit", "--rate", "--prompt", "--generate", "--batch", "--reduce", "--library", "--mode"),
)
MOST = 100_000  # cells: more than that is a question that wants fewer values


@dataclass(frozen=True, slots=True)
class Cell:
    """One question: words of a command line, and the values in which it differs from others."""

    words: tuple[str, ...]
    values: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The values, for people."""
        return " ".join(f"{key}={value}" for key, value in self.values) or " ".join(self.words)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All cells, and a fingerprint by which the results of this sweep are known again."""

    words: tuple[str, ...]
    cells: tuple[Cell, ...]

    @property
    def fingerprint(self) -> str:
        """Sixteen letters that another sweep does not have."""
        text = json.dumps([cell.words for cell in self.cells])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def cells_of(words: Sequence[str], most: int = MOST) -> Sweep:
    """Make a cell of every combination of what is listed in the words of a command.

    >>> [cell.name for cell in cells_of(["predict", "gpt2", "--set", "batch=8,16"]).cells]
    ['batch=8', 'batch=16']
    """
    choices = [_choices(option, value) for option, value in _pairs(words)]
    count = math.prod(len(each) for each in choices)
    if count > most:
        raise UsageError(
            f"{count} cells are more than the {most} of one sweep",
            "Use fewer values of some option, or several sweeps.",
        )
    if not count:
        raise UsageError("this sweep has no cells", "Give every option a value.")
    cells = []
    for chosen in itertools.product(*choices):
        said = tuple(word for one in chosen for word in one.words)
        differing = [one.value for one, all_ in zip(chosen, choices, strict=True) if len(all_) > 1]
        cells.append(Cell(said, tuple(value for value in differing if value is not None)))
    if len({cell.words for cell in cells}) < len(cells):
        raise UsageError("some cells of this sweep are the same", "Name every value once.")
    return Sweep(tuple(words), tuple(cells))


@dataclass(frozen=True, slots=True)
class _Choice:
    """One value of an option: the words that say it, and its key and value in a row."""

    words: tuple[str, ...]
    value: tuple[str, str] | None = None


def _pairs(words: Sequence[str]) -> list[tuple[str, str | None]]:
    """Put options and their values together; what stands alone has none."""
    found: list[tuple[str, str | None]] = []
    listed, place = (*SIZES, *LISTS, "--set"), 0
    while place < len(words):
        word = words[place]
        option, equals, value = word.partition("=")
        if option in listed and equals:
            found.append((option, value))
        elif word in listed:
            if place + 1 == len(words):
                raise UsageError(f"{word} needs a value")
            place += 1
            found.append((word, words[place]))
        else:
            found.append((word, None))
        place += 1
    return found


def _choices(option: str, value: str | None) -> list[_Choice]:
    if value is None:
        return [_Choice((option,))]
    if option == "--set":
        key, _, text = value.partition("=")
        return [_Choice((option, f"{key}={one}"), (key, one)) for one in split(text)]
    texts = [str(size) for size in parse_sizes(value)] if option in SIZES else split(value)
    return [_Choice((option, one), (option.lstrip("-"), one)) for one in texts]


def split(text: str) -> list[str]:
    """Split at commas; that before the latency of a network's level is its own.

    >>> split("h100-8,switch(8)@400GiB/s,936ns"), split("1,2,4")
    (['h100-8', 'switch(8)@400GiB/s,936ns'], ['1', '2', '4'])
    """
    found: list[str] = []
    for part in text.split(","):
        if found and "@" in found[-1] and part[:1].isdigit() and part.strip().endswith("s"):
            found[-1] += f",{part}"
        else:
            found.append(part)
    return [part.strip() for part in found if part.strip()]
