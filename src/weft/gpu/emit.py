"""The knobs of a plan as text, for people who do not import weft.

``env`` prints variables for a whole process, the others Python or a file of the engine that is
asked for. What a format cannot express is listed as a comment, never left out.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.errors import UnknownNameError, nearest
from weft.gpu.knobs import NCCL_NAMES, SEPARATE_REDUCTIONS, Door, Knob, KnobExecution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from weft.hardware.software_stack import SoftwareStack
    from weft.schedule.strategy import Strategy

# The hints of torchcomms for fields of ncclConfig_t, and the one for the stream's priority.
_HINTS = {
    "config.cta_policy": "cta_policy",
    "config.max_ctas": "max_ctas",
    "config.min_ctas": "min_ctas",
    "is_high_priority_stream": "torchcomm::nccl::high_priority_stream",
}


@dataclass(frozen=True, slots=True)
class PlannedCollective:
    """One collective of a plan, with the knobs that carry its strategy out."""

    pair: str
    collective: str
    nbytes: int
    group: str
    strategy: Strategy
    execution: KnobExecution

    @property
    def options(self) -> tuple[Knob, ...]:
        """The options of its communicator; those with other options need another communicator."""
        return self.execution.of("communicator")

    def __str__(self) -> str:
        return f"{self.pair}: {self.strategy}"


@dataclass(frozen=True, slots=True)
class PlannedKnobs:
    """All collectives of a plan, and what they were planned for."""

    title: str
    num_ranks: int
    vendor: str
    stack: SoftwareStack
    collectives: tuple[PlannedCollective, ...]

    def knobs(self, door: Door) -> dict[Knob, list[PlannedCollective]]:
        """Return each knob of a door with the collectives that ask for it."""
        found: dict[Knob, list[PlannedCollective]] = defaultdict(list)
        for each in self.collectives:
            for knob in each.execution.of(door):
                found[knob].append(each)
        return dict(found)

    def communicators(self) -> dict[tuple[str, tuple[Knob, ...]], list[PlannedCollective]]:
        """Return the collectives by group and distinct options: one communicator for each."""
        found: dict[tuple[str, tuple[Knob, ...]], list[PlannedCollective]] = defaultdict(list)
        for each in self.collectives:
            found[each.group, each.options].append(each)
        return dict(found)


def emit(what: str, planned: PlannedKnobs) -> str:
    """Return the knobs of a plan in a format of ``FORMATS``."""
    if what not in FORMATS:
        raise UnknownNameError(f"--emit: unknown format {what!r}", nearest(what, FORMATS))
    heading = f"# {planned.title}, for {planned.stack}"
    # Names come from traces and files: a line break in one would make code of a comment.
    lines = (" ".join(line.splitlines()) for line in (heading, *FORMATS[what](planned)))
    return "\n".join(lines) + "\n"


def _comments(planned: Iterable[PlannedCollective]) -> Iterator[str]:
    for each in planned:
        yield f"# {each}"


def _others(planned: PlannedKnobs, is_emitted: Callable[[Knob], bool]) -> Iterator[str]:
    """Name the knobs of a plan that a format cannot express, and the format that can."""
    found: dict[Knob, int] = defaultdict(int)
    for each in planned.collectives:
        for knob in each.execution.knobs:
            if not is_emitted(knob):
                found[knob] += 1
    if found:
        yield "# not expressed here:"
    for knob, count in found.items():
        many = f"{count} collectives" if count > 1 else "one collective"
        where = _FORMAT_OF[knob.door]
        yield f"#   {knob.name} = {knob.value!r} for {many}: --emit {where}"


def _env(planned: PlannedKnobs) -> Iterator[str]:
    values: dict[str, dict[str, list[PlannedCollective]]] = defaultdict(lambda: defaultdict(list))
    for each in planned.collectives:
        for knob in each.execution.knobs:
            if knob.env:
                values[knob.env][_as_text(knob.value)].append(each)
    if any(each.execution.path for each in planned.collectives):
        yield "# the log proves which path each collective takes (weft.torch.apply reads it)"
        yield "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,TUNING NCCL_DEBUG_FILE=nccl.%h.%p.log"
    for name, found in values.items():
        joined = name == "NCCL_ALGO"  # a list with a part for each function
        functions = {value.partition(":")[0] for value in found}
        if len(found) > (len(functions) if joined else 1):
            yield f"# {name}: a process has one value, but the plan needs {', '.join(found)};"
            yield "# use --emit torch, which creates a communicator for each"
            continue
        using = [each for listed in found.values() for each in listed]
        yield from (f"# {name} is planned for:", *(f"#   {each}" for each in using))
        others = [each for each in planned.collectives if each not in using]
        if others and not joined:
            yield "# the variable holds for the whole process, so it also applies to:"
            yield from (f"#   {each}" for each in others)
        value = ";".join(found)
        yield f"export {name}='{value}'" if joined else f"export {name}={value}"
    yield from _others(planned, lambda knob: bool(knob.env))


def _torch(planned: PlannedKnobs) -> Iterator[str]:
    yield from ("import torch", "import torch.distributed as dist", "")
    for number, ((group, options), using) in enumerate(planned.communicators().items()):
        yield from _comments(using)
        if not options:
            yield f"# use the communicator of {group or 'the default group'}"
            continue
        yield f"options{number} = dist.ProcessGroupNCCL.Options()"
        for knob in options:
            yield f"options{number}.{knob.name} = {knob.value!r}"
        ranks = "ranks" if group else "None"
        yield f"# ranks: those of {group or 'the default group'}"
        yield f"group{number} = dist.new_group({ranks}, pg_options=options{number})"
    for knob, using in planned.knobs("torch").items():
        yield from ("", *_comments(using), *_call(knob))
    yield from _others(planned, lambda knob: knob.door in ("communicator", "torch"))


def _call(knob: Knob) -> Iterator[str]:
    module, _, name = knob.name.rpartition(".")
    if name.startswith("_set_sm"):
        yield f"{knob.name}({knob.value!r})  # SMs that cuBLASLt and hipBLASLt leave alone"
    else:
        yield f"from {module} import {name}"
        yield f"{name}({knob.value!r})"


def _fsdp2(planned: PlannedKnobs) -> Iterator[str]:
    yield from (
        "from torch.distributed.fsdp import FSDPModule",
        "",
        "# model: after fully_shard, whose mesh has the communicator of --emit torch",
        "sharded = [m for m in model.modules() if isinstance(m, FSDPModule)]",
    )
    for knob, using in planned.knobs("fsdp2").items():
        yield from ("", *_comments(using))
        if knob == SEPARATE_REDUCTIONS:  # once for all modules: they share one communicator
            yield f"model.{knob.name}({knob.value!r})"
        else:
            yield "for module in sharded:"
            yield f"    module.{knob.name}({knob.value!r})"
    yield from _others(planned, lambda knob: knob.door in ("fsdp2", "communicator", "torch"))


def _ddp(planned: PlannedKnobs) -> Iterator[str]:
    yield "from torch.nn.parallel import DistributedDataParallel"
    values = {knob.name: knob.value for knob in planned.knobs("ddp")}
    for using in planned.knobs("ddp").values():
        yield from _comments(using)
    arguments = "".join(f", {name}={value!r}" for name, value in values.items())
    yield f"model = DistributedDataParallel(model{arguments})"
    yield from _others(planned, lambda knob: knob.door == "ddp")


def _inductor(planned: PlannedKnobs) -> Iterator[str]:
    yield from (
        "import torch._inductor.config as inductor",
        "",
        "distributed = inductor.aten_distributed_optimizations",
        "distributed.enable_overlap_scheduling = True",
        "distributed.collective_bucketing = True",
        "distributed.insert_overlap_deps = True",
    )
    for knob, using in planned.knobs("inductor").items():
        yield from _comments(using)
        yield f"inductor.{knob.name} = {knob.value!r}"
    yield from (
        "# with weft installed, its prices instead of Inductor's own:",
        "# distributed.custom_runtime_estimation = weft.torch.runtime_estimator(PLATFORM)",
    )
    yield from _others(planned, lambda knob: knob.door == "inductor")


def _nccl_tuner(planned: PlannedKnobs) -> Iterator[str]:
    """Yield rows for what a tuner decides: the algorithm and the channels of one collective.

    Fields as in ``plugins/tuner/example`` of NCCL (``ext-tuner/example`` before 2.28): collective,
    min and max bytes, algorithm, protocol, channels, nodes, ranks, pipe ops, registered; -1: any.
    """
    yield "# NCCL_TUNER_PLUGIN=libnccl-tuner-example.so NCCL_TUNER_CONFIG_FILE=this file"
    for each in planned.collectives:
        knobs = {knob.name: knob.value for knob in each.execution.knobs}
        channels = int(knobs.get("config.max_ctas", -1))
        algorithm = str(knobs.get("NCCL_ALGO", ":ring")).partition(":")[2]
        if "config.max_ctas" not in knobs and "NCCL_ALGO" not in knobs:
            yield f"# {each}: {'by default' if not knobs else 'not by a tuner'}"
            continue
        name = NCCL_NAMES.get(each.collective)
        if name is None:
            yield f"# {each}: tuners are not asked about {each.collective}"
            continue
        yield f"# {each}"
        yield f"{name},{each.nbytes},{each.nbytes},{algorithm},simple,{channels},-1,-1,-1,-1"
        left = [n for n in knobs if n not in ("config.max_ctas", "config.min_ctas", "NCCL_ALGO")]
        if left:
            yield f"# {each}: {', '.join(left)} not by a tuner"


def _torchcomms(planned: PlannedKnobs) -> Iterator[str]:
    yield from ("import torch", "import torchcomms", "")
    library = "rccl" if planned.vendor == "AMD" else "nccl"
    for number, ((group, options), using) in enumerate(planned.communicators().items()):
        yield from _comments(using)
        hints = {_HINTS[knob.name]: _as_text(knob.value) for knob in options}
        name = f"{group or 'world'}{number}"
        yield f"comm{number} = torchcomms.new_comm("
        yield f'    "{library}", torch.device("cuda"), name={json.dumps(name)}, hints={hints!r}'
        yield ")"
    yield from _others(planned, lambda knob: knob.door == "communicator")


def _as_text(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


FORMATS: dict[str, Callable[[PlannedKnobs], Iterator[str]]] = {
    "env": _env,
    "torch": _torch,
    "fsdp2": _fsdp2,
    "ddp": _ddp,
    "inductor": _inductor,
    "nccl-tuner": _nccl_tuner,
    "torchcomms": _torchcomms,
}
_FORMAT_OF: dict[Door, str] = {
    "communicator": "torch",
    "fsdp2": "fsdp2",
    "ddp": "ddp",
    "inductor": "inductor",
    "torch": "torch",
    "env": "env",
    "weft": "torch and weft.torch.apply",
}
