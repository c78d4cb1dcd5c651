"""Inputs shared by several verbs: a machine, a workload with its settings, a recorded step."""

import re
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft.errors import FormatError, UsageError

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.hardware.software_stack import SoftwareStack
    from weft.trace import Trace
    from weft.trace.formats.graph import Graph

RECORDED = (".json", ".json.gz", ".csv", ".et", ".et.gz", ".sqlite", ".zip")
_BEGINNING = 200  # bytes at the start of a file in which a workload identifies itself


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
        help="A name from `weft platforms`, a cluster such as mi300x-8x16, a .toml file "
        "or a network such as switch(8)@400GiB/s,936ns.",
        autocompletion=complete_platform,
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option("--ranks", metavar="N", help="Number of ranks; default: all of the platform."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="K=V",
        help="Change a setting of the workload, such as batch=4096; weft models NAME lists them.",
    ),
]


Stack = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The software that runs the step: eager, compile, torchtitan, megatron, mlperf ..; "
        "default: ideally fused kernels and PyTorch's usual host overhead.",
    ),
]
Versions = Annotated[
    str | None,
    typer.Option(
        "--stack",
        metavar="NAME,K=V..",
        help="The software that runs the step (eager, compile, torchtitan, megatron, mlperf ..), "
        "and versions that say what can be executed, such as nccl=2.31,torch=2.13.",
    ),
]


def machine_of(on: str | None, ranks: int | None = None, *, instead: str = "") -> "Platform":
    """Return the platform that a verb needs; ``instead`` names an alternative to --on."""
    from weft.hardware import platform

    if on is None:
        hint = f"Use --on mi300x-8 (see weft platforms){instead}."
        raise UsageError("--on is missing", hint)
    return platform(on, num_ranks=ranks)


GpuHour = Annotated[
    float | None,
    typer.Option(
        "--gpu-hour",
        metavar="PRICE",
        help="Price of one GPU for one hour: adds the cost of a million tokens.",
    ),
]


def gpu_hour_of(price: float | None) -> float:
    """Return the price of a GPU for an hour, 0 where none was given."""
    if price is not None and not 0 < price < float("inf"):
        raise UsageError(
            f"--gpu-hour must be > 0 (got {price:g})", "Use what an hour costs: --gpu-hour 2.50"
        )
    return price or 0.0


def split_stack(stack: str | None) -> "tuple[str | None, SoftwareStack]":
    """Split ``torchtitan,nccl=2.31`` into the name of a stack and versions."""
    from weft.hardware.software_stack import parse_stack

    words = [word.strip() for word in (stack or "").split(",") if word.strip()]
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise UsageError(
            f"--stack: expected one name (got {' and '.join(names)})",
            "Use --stack torchtitan,nccl=2.31,torch=2.13.",
        )
    versions = parse_stack(",".join(word for word in words if "=" in word))
    return (names[0] if names else None), versions


def settings_of(given: list[str] | None, stack: str | None = None) -> dict[str, str]:
    """Parse ``key=value`` words; the software stack is one more setting."""
    found = {} if stack is None else {"stack": stack}
    for word in given or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise UsageError(
                f"--set: cannot parse {word!r}", "Use --set key=value, such as batch=4096."
            )
        if re.search(r",\s*\w+\s*=", value):
            each = " ".join(f"--set {part.strip()}" for part in word.split(","))
            raise UsageError(f"--set: takes one setting (got {word!r})", f"Use {each}.")
        found[key.strip()] = value.strip()
    return found


def recorded(spec: str, given: dict[str, str], ranks: int | None) -> "list[Trace | Graph]":
    """Read the recorded steps of a file, folder, glob or archive; none if it names a workload.

    A graph without times is returned as such: any number of ranks may run it.
    """
    if spec.endswith(RECORDED) and not _is_several(spec) and not Path(spec).exists():
        raise FormatError(f"there is no file {spec}", "Name a workload, or a file that exists.")
    if not is_recorded(spec):
        return []
    from weft.trace.formats.graph import Graph
    from weft.trace.formats.reading import read_file
    from weft.trace.formats.trace_files import trace_files

    found = [read_file(file)[0] for file in trace_files(spec)]
    timed = [each for each in found if not isinstance(each, Graph) or each.has_times]
    if given:
        raise UsageError(
            f"--set {next(iter(given))} does not apply to the recorded step {spec}",
            "Use weft whatif to change a recorded step.",
        )
    if ranks is not None and timed:
        raise UsageError(
            f"--ranks does not apply to the recorded step {spec}",
            "Remove --ranks, or try weft whatif --strategy 'ranks*2'.",
        )
    return [
        each.to_trace() if isinstance(each, Graph) and each.has_times else each for each in found
    ]


def _is_several(spec: str) -> bool:
    """Return whether a word names a folder of traces or a pattern of files."""
    if Path(spec).is_dir():
        from weft.models.named import configuration_of

        return configuration_of(spec) == spec  # else the folder of a model
    return has_magic(spec) and not Path(spec).exists()


def is_recorded(spec: str) -> bool:
    """Return whether a word names traces: a folder, a pattern, or a file that is no workload.

    A workload file identifies itself at its start.
    """
    if _is_several(spec):
        return True
    path = Path(spec)
    if not spec.endswith(RECORDED) or not path.is_file():
        return False
    from weft.models.find import is_configuration

    if is_configuration(spec):
        return False
    with path.open("rb") as file:
        return b"weft_workload" not in file.read(_BEGINNING)
