"""The cells of a sweep: one command of a verb per combination of listed values."""

import hashlib
import itertools
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from weft.errors import UsageError
from weft.units import parse_sizes

# Options whose values may be lists; those of sizes may also be ranges.
SIZES = ("--size", "--block")
LISTS = (
    *("--on", "--ranks", "--algorithm", "--strategy", "--collective", "--gemm", "--fetch"),
    *("--hit", "--rate", "--prompt", "--generate", "--batch", "--reduce", "--library", "--mode"),
    *("--concurrency", "--server", "--tokens", "--requests", "--engines", "--count", "--seed"),
)
MOST = 100_000  # a larger sweep is most likely a mistake


@dataclass(frozen=True, slots=True)
class SweepCell:
    """One command line, and the values that distinguish it from other cells."""

    words: tuple[str, ...]
    values: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """The values, as shown to users."""
        return " ".join(f"{key}={value}" for key, value in self.values) or " ".join(self.words)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All cells, and a fingerprint that identifies the results of this sweep."""

    words: tuple[str, ...]
    cells: tuple[SweepCell, ...]

    @property
    def fingerprint(self) -> str:
        """A hash of sixteen letters that identifies this sweep and the files that it reads."""
        text = json.dumps([[cell.words for cell in self.cells], _files(self.cells)])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def cells_of(words: Sequence[str], most: int = MOST) -> Sweep:
    """Build a cell for every combination of the values listed in a command.

    >>> [cell.name for cell in cells_of(["predict", "gpt2", "--set", "batch=8,16"]).cells]
    ['batch=8', 'batch=16']
    """
    choices = [_choices(option, value) for option, value in _pairs(words)]
    count = math.prod(len(each) for each in choices)
    if count > most:
        raise UsageError(
            f"a sweep of {count} cells exceeds the limit of {most}",
            "Use fewer values of some option, or several sweeps.",
        )
    if not count:
        raise UsageError("this sweep has no cells", "Give every option a value.")
    cells = []
    for chosen in itertools.product(*choices):
        command = tuple(word for one in chosen for word in one.words)
        differing = [one.value for one, all_ in zip(chosen, choices, strict=True) if len(all_) > 1]
        cells.append(SweepCell(command, tuple(value for value in differing if value is not None)))
    if len({cell.words for cell in cells}) < len(cells):
        raise UsageError("this sweep has duplicate cells", "List every value once.")
    return Sweep(tuple(words), tuple(cells))


def _files(cells: Sequence[SweepCell]) -> dict[str, str]:
    """Return hashes of the files and folders that a sweep names: workloads, platforms, traces."""
    words = {word for cell in cells for word in cell.words}
    names = sorted({text for word in words for text in (word, word.partition("=")[2])})
    return {
        name: hashlib.sha256(_content(Path(name))).hexdigest()
        for name in names
        if os.path.exists(name)  # noqa: PTH110 - a Path raises for words that are no names
    }


def _content(path: Path) -> bytes:
    """Return what a file holds; of a folder, as of a model, the sizes and times of JSON files.

    Others may be written by the sweep itself.
    """
    if not path.is_dir():
        return path.read_bytes() if path.is_file() else b""
    found = [(each.name, each.stat()) for each in sorted(path.glob("*.json"))]
    return repr([(name, info.st_size, info.st_mtime_ns) for name, info in found]).encode()


@dataclass(frozen=True, slots=True)
class _Choice:
    """One value of an option: its words on the command line, and its key and value in a row."""

    words: tuple[str, ...]
    value: tuple[str, str] | None = None


def _pairs(words: Sequence[str]) -> list[tuple[str, str | None]]:
    """Pair options with their values; positional words have none."""
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
    """Split at commas, except before the latency of a network level.

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
