"""What several verbs are asked about: a machine, a workload with its settings, a recorded step."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.errors import UsageError

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.trace import Trace

RECORDED = (".json", ".json.gz", ".csv", ".et", ".et.gz", ".zip")
_BEGINNING = 200  # bytes of a file in which a workload says that it is one


def complete_workload(incomplete: str) -> list[str]:
    """Complete the name of a workload."""
    from weft.models.named import workload_names

    return [name for name in workload_names() if name.startswith(incomplete)]


def complete_platform(incomplete: str) -> list[str]:
    """Complete the name of a platform of the catalogue."""
    from weft.hardware import platform_names

    return [name for name in platform_names() if name.startswith(incomplete)]


On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="PLATFORM",
        help="A name from `weft platforms`, a cluster as mi300x-8x16, a .toml file "
        "or a network as switch(8)@400GiB/s,936ns.",
        autocompletion=complete_platform,
    ),
]
Ranks = Annotated[
    int | None, typer.Option("--ranks", metavar="N", help="How many ranks; all of the platform's.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="K=V", help="Change a setting of the workload, as batch=4096."),
]


def machine_of(on: str | None, ranks: int | None = None, *, instead: str = "") -> "Platform":
    """Find the platform that a verb needs; ``instead`` says what else would do."""
    from weft.hardware import platform

    if on is None:
        hint = f"Use --on mi300x-8 (see weft platforms){instead}."
        raise UsageError("which hardware? --on is missing", hint)
    return platform(on, num_ranks=ranks)


def settings_of(given: list[str] | None) -> dict[str, str]:
    """Read ``key=value`` words."""
    found = {}
    for word in given or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(f"cannot read --set {word!r}", "Use --set key=value, as batch=4096.")
        found[key.strip()] = value.strip()
    return found


def recorded(spec: str, given: dict[str, str], ranks: int | None) -> "Trace | None":
    """Read a recorded step, as it is; None where ``spec`` names a workload."""
    if not is_trace(spec):
        return None
    if given:
        raise UsageError(
            f"{spec} is a recorded step: --set {next(iter(given))} changes nothing in it",
            "Use weft whatif to change a recorded step.",
        )
    if ranks is not None:
        raise UsageError(
            f"{spec} is one rank of the job it was recorded in: --ranks changes nothing in it",
            "Leave --ranks out, or try weft whatif --strategy 'ranks*2'.",
        )
    from weft.trace import read

    return read(spec)


def is_trace(spec: str) -> bool:
    """Return whether a file is a recorded step; a workload file says so at its beginning."""
    path = Path(spec)
    if not spec.endswith(RECORDED) or not path.is_file():
        return False
    from weft.models.find import is_configuration

    if is_configuration(spec):
        return False
    with path.open("rb") as file:
        return b"weft_workload" not in file.read(_BEGINNING)
