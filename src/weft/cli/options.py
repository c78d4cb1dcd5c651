"""Options shared by several verbs, and shell completion."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import typer

from weft.errors import UsageError


def complete_collective(incomplete: str) -> list[str]:
    """Complete the name of a collective."""
    from weft.collectives import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def complete_algorithm(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the last of a list of algorithms, those of the collective if it is known."""
    from weft.collectives import KINDS, algorithms
    from weft.hardware.libraries import library_names

    kind = context.params.get("kind")
    kinds = [kind] if kind in KINDS else KINDS
    known = dict.fromkeys(name for each in kinds for name in algorithms(each))
    return complete_list(incomplete, ("auto", "dma-auto", "all", *known, *library_names()))


def complete_list(incomplete: str, names: Iterable[str]) -> list[str]:
    """Complete the last of a list of names.

    >>> complete_list("ring,di", ["ring", "direct"])
    ['ring,direct']
    """
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")]
Sizes = Annotated[
    str,
    typer.Option(
        "--size",
        metavar="S,..",
        help="Sizes and ranges, such as 1KiB,64KiB or 1KiB:1GiB; counted as in nccl-tests.",
    ),
]


def to_file(what: str) -> Any:
    """Return the option ``-o FILE``; ``what`` describes the formats."""
    return typer.Option("-o", "--output", metavar="FILE", help=what)


def words(text: str | None) -> tuple[str, ...]:
    """Split a comma-separated list.

    >>> words("ring,direct")
    ('ring', 'direct')
    """
    return tuple(word for part in (text or "").split(",") if (word := part.strip()))


def named(text: str, what: str) -> tuple[str, ...]:
    """Split a list that must not be empty."""
    found = words(text)
    if not found:
        raise UsageError(f"{what}: the list is empty")
    return found


def names(text: str, known: Iterable[str], what: str) -> list[str]:
    """Split a list of names, in which ``all`` stands for every known one.

    >>> names("auto,all", ["ring", "direct"], "algorithm")
    ['auto', 'ring', 'direct']
    """
    return [name for word in named(text, what) for name in (known if word == "all" else (word,))]


def numbers(text: str | None, what: str) -> tuple[int, ...]:
    """Parse a list of positive integers."""
    try:
        found = tuple(int(word) for word in words(text))
    except ValueError:
        raise UsageError(
            f"{what}: cannot parse {text!r}", "Use a number or a list such as 2,4,8."
        ) from None
    if any(number < 1 for number in found):
        raise UsageError(f"{what} must be > 0 (got {text})")
    return found


def refuse_options(given: Mapping[str, object], what: str) -> None:
    """Raise on the first option that is given; None and False stand for those that are not."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise UsageError(f"{name} does not apply to {what}", f"Remove {name}.")
