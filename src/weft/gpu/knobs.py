"""One table: which switch of which engine carries a strategy out, by vendor and version.

    Strategy fields ──▶ aspects ──▶ first Engine of the table that serves vendor, collective and
    (schedule table)                algorithm, and whose versions are installed ──▶ Knobs

A strategy that no engine of the stack serves is infeasible, with the missing version as the
reason. Planner, ``weft plan --emit`` and ``weft.torch.apply`` read this table and nothing else.
To add an engine, add a line. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from weft.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.hardware.software_stack import SoftwareStack
    from weft.schedule.strategy import Strategy

# Where a knob is set: options of a communicator, methods of FSDPModule, arguments of DDP, the
# configuration of Inductor, calls of torch, variables of the environment, modules of weft.
Door = Literal["communicator", "fsdp2", "ddp", "inductor", "torch", "env", "weft"]
Value = str | int | float | bool
# What a strategy asks of an engine.
Aspect = Literal[
    "engines", "units", "carveout", "priority", "exclusive", "algorithm", "fused", "codec", "bucket"
]

ZERO_CTA = 2  # NCCL_CTA_POLICY_ZERO of nccl.h
COPYING = ("all_gather", "all_to_all", "gather", "scatter")


@dataclass(frozen=True, slots=True)
class Knob:
    """One setting. ``value`` may be ``{units}`` or ``{bucket}``: a setting of the strategy.

    ``env`` is the variable that sets the same for a whole process, "" where there is none.
    """

    door: Door
    name: str
    value: Value
    env: str = ""


@dataclass(frozen=True, slots=True)
class GpuEngine:
    """A line of the table: what serves one aspect, with its needs and where that is documented.

    Without ``vendors``, ``collectives`` or ``algorithms`` it serves all. ``compiled``: only inside
    ``torch.compile``. ``in_node``: only where all ranks of the group are on one node.
    """

    name: str
    aspect: Aspect
    knobs: tuple[Knob, ...]
    needs: Mapping[str, str] = field(hash=False)
    source: str
    vendors: tuple[str, ...] = ()
    collectives: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = ()
    producers: tuple[str, ...] = ()  # families of the kernel that a fused collective follows
    at_least: int = 0  # bytes
    at_most: int = 0  # bytes; 0: any
    in_node: bool = False
    compiled: bool = False
    by_path: str = ""  # the path that proves it, see collective_paths
    by_hand: bool = False  # the job must set it up: ``weft.torch.apply`` refuses it


_ZERO_CTA_KNOBS = (
    Knob("communicator", "config.cta_policy", ZERO_CTA, env="NCCL_CTA_POLICY"),
    Knob("torch", "torch.distributed._symmetric_memory.set_backend", "NCCL"),
    Knob("fsdp2", "set_symm_mem_for_comm", "NCCL"),
)
_LOW_CONTENTION_KNOBS = (
    Knob("inductor", "aten_distributed_optimizations.enable_low_contention_collectives", True),
)
_CTA_KNOBS = (
    Knob("communicator", "config.max_ctas", "{units}", env="NCCL_MAX_CTAS"),
    Knob("communicator", "config.min_ctas", 1, env="NCCL_MIN_CTAS"),
)
# Reductions of the same shards go to a communicator of their own, which keeps its kernels.
SEPARATE_REDUCTIONS = Knob("fsdp2", "set_separate_reduce_scatter_group", True)

ENGINES: tuple[GpuEngine, ...] = (
    GpuEngine(
        "NCCL copy-engine collectives",
        "engines",
        (*_ZERO_CTA_KNOBS, SEPARATE_REDUCTIONS),
        {"nccl": "2.28", "cuda": "12.5", "torch": "2.13"},
        "nccl ce_coll.cc; pytorch pull requests 164309, 171811, 176613",
        vendors=("NVIDIA",),
        collectives=COPYING,
        algorithms=("dma",),
        in_node=True,
        by_path="copy-engine",
    ),
    GpuEngine(
        "NCCL copy-engine collectives with batched copies",
        "engines",
        (*_ZERO_CTA_KNOBS, SEPARATE_REDUCTIONS),
        {"nccl": "2.28", "cuda": "12.8", "torch": "2.13"},
        "nccl ce_coll.cc: cudaMemcpyBatchAsync from CUDA 12.8 on",
        vendors=("NVIDIA",),
        collectives=COPYING,
        algorithms=("dma-b2b",),
        in_node=True,
        by_path="copy-engine",
    ),
    GpuEngine(
        "RCCL copy-engine collectives",
        "engines",
        (*_ZERO_CTA_KNOBS, SEPARATE_REDUCTIONS),
        {"rocm": "7.12", "torch": "2.13"},
        "rocm-systems pull requests 4890, 6771, 8463",
        vendors=("AMD",),
        collectives=COPYING,
        algorithms=("dma",),
        in_node=True,
        by_path="copy-engine",
    ),
    GpuEngine(
        "RCCL all-reduce by copy engines",
        "engines",
        (Knob("env", "RCCL_CE_AR_MAX_MSG_BYTES", 256 * MIB, env="RCCL_CE_AR_MAX_MSG_BYTES"),),
        {"rocm": "7.12"},
        "rocm-systems pull request 8463: all_reduce of 4 to 256 MiB",
        vendors=("AMD",),
        collectives=("all_reduce",),
        algorithms=("dma",),
        at_least=4 * MIB,
        at_most=256 * MIB,
        in_node=True,
        by_path="copy-engine",
    ),
    GpuEngine(
        "mori SDMA collectives",
        "engines",
        (Knob("fsdp2", "set_custom_all_gather", "mori.ccl"),),
        {"mori": "0", "torch": "2.13"},
        "mori pull requests 200, 235: SDMA handles AllGather, ReduceScatter, All2All",
        vendors=("AMD",),
        collectives=("all_gather", "reduce_scatter", "all_to_all"),
        algorithms=("dma",),
        in_node=True,
        by_path="copy-engine",
        by_hand=True,
    ),
    GpuEngine(
        "low-contention collectives of torch",
        "engines",
        _LOW_CONTENTION_KNOBS,
        {"torch": "2.13"},
        "torch/_inductor/fx_passes/low_contention_collectives.py of torch 2.13",
        vendors=("NVIDIA", "AMD"),
        collectives=("all_gather",),
        algorithms=("dma",),
        at_least=16 * MIB,  # of one rank: low_contention_min_bytes_per_rank of torch 2.13
        in_node=True,
        compiled=True,
        by_path="copy-engine",
    ),
    GpuEngine(
        "low-contention collectives of torch, sums by a kernel",
        "engines",
        _LOW_CONTENTION_KNOBS,
        {"torch": "2.13"},
        "torch/_inductor/fx_passes/low_contention_collectives.py of torch 2.13",
        vendors=("AMD",),
        collectives=("reduce_scatter",),
        algorithms=("dma",),
        at_least=16 * MIB,
        in_node=True,
        compiled=True,
        by_path="copy-engine",
    ),
    GpuEngine(
        "CTAs of an NCCL communicator",
        "units",
        _CTA_KNOBS,
        {"nccl": "2.17", "torch": "2.1"},
        "ncclConfig_t.maxCTAs, NCCL user guide",
        vendors=("NVIDIA",),
    ),
    GpuEngine(
        "CTAs of an RCCL communicator",
        "units",
        _CTA_KNOBS,
        {"rocm": "6.0", "torch": "2.1"},
        "RCCL environment variables: NCCL_MAX_CTAS overrides maxCTAs of ncclConfig_t",
        vendors=("AMD",),
    ),
    GpuEngine(
        "SM carve-out of cuBLASLt",
        "carveout",
        (Knob("torch", "torch._C._set_sm_carveout_experimental", "{units}"),),
        {"torch": "2.7"},
        "pytorch pull request 144974; in the stubs of torch 2.13",
        vendors=("NVIDIA",),
    ),
    GpuEngine(
        "CU mask of hipBLASLt",
        "carveout",
        (Knob("torch", "torch._C._set_sm_carveout_experimental", "{units}"),),
        {"torch": "2.13"},
        "pytorch pull request 149466",
        vendors=("AMD",),
    ),
    GpuEngine(
        "high-priority stream of a communicator",
        "priority",
        (Knob("communicator", "is_high_priority_stream", True, env="TORCH_NCCL_HIGH_PRIORITY"),),
        {"torch": "2.0"},
        "ProcessGroupNCCL.Options of torch",
        vendors=("NVIDIA", "AMD"),
    ),
    GpuEngine(
        "wait of the computation for the collective",
        "exclusive",
        (Knob("weft", "wait", True),),
        {"torch": "2.0"},
        "Work.wait of torch.distributed",
        vendors=("NVIDIA", "AMD"),
    ),
    GpuEngine(
        "ring of NCCL",
        "algorithm",
        (Knob("env", "NCCL_ALGO", "{collective}:ring", env="NCCL_ALGO"),),
        {"nccl": "2.24"},
        "NCCL_ALGO with a list for each function, NCCL user guide",
        vendors=("NVIDIA",),
        collectives=("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"),
        algorithms=("ring",),
        by_path="ring",
    ),
    GpuEngine(
        "tree of NCCL",
        "algorithm",
        (Knob("env", "NCCL_ALGO", "{collective}:tree", env="NCCL_ALGO"),),
        {"nccl": "2.24"},
        "NCCL_ALGO with a list for each function, NCCL user guide",
        vendors=("NVIDIA",),
        collectives=("all_reduce",),
        algorithms=("tree",),
        by_path="tree",
    ),
    GpuEngine(
        "async tensor parallelism of Inductor",
        "fused",
        (Knob("inductor", "_micro_pipeline_tp", True),),
        {"torch": "2.13"},
        "torch/_inductor/fx_passes/micro_pipeline_tp.py: matmul + reduce_scatter",
        vendors=("NVIDIA", "AMD"),
        collectives=("reduce_scatter",),
        producers=("gemm",),
        in_node=True,
        compiled=True,
    ),
    GpuEngine(
        "buckets of DDP",
        "bucket",
        (Knob("ddp", "bucket_cap_mb", "{bucket}"),),
        {"torch": "1.0"},
        "DistributedDataParallel of torch",
        collectives=("all_reduce",),
    ),
)


@dataclass(frozen=True, slots=True)
class StrategyDemand:
    """What a strategy asks of the stack for one collective.

    ``producer`` is the family of the kernel right before it.
    """

    strategy: Strategy
    collective: str
    nbytes: int
    num_ranks: int
    vendor: str
    in_node: bool = True
    producer: str = ""

    def aspects(self) -> Iterator[tuple[Aspect, str]]:
        """Yield what must be served, with the algorithm where one is asked for."""
        what, algorithm = self.strategy.kind, self.strategy.algorithm or ""
        if what.exclusive:
            yield "exclusive", ""
        if what.first:
            yield "priority", ""
        if what.by_engines:
            yield "engines", algorithm or "dma"
        elif algorithm:
            yield "algorithm", algorithm
        if what.masks:
            yield "carveout", ""
            if not what.by_engines:
                yield "units", ""
        if what.sliced:
            yield "fused", ""
        if what.coded:
            yield "codec", ""
        if self.strategy.bucket:
            yield "bucket", ""


@dataclass(frozen=True, slots=True)
class KnobExecution:
    """How a strategy is carried out: its engines, and every knob with its value filled in."""

    engines: tuple[GpuEngine, ...] = ()
    knobs: tuple[Knob, ...] = ()

    def of(self, *doors: Door) -> tuple[Knob, ...]:
        """Return the knobs of some doors."""
        return tuple(knob for knob in self.knobs if knob.door in doors)

    @property
    def path(self) -> str:
        """The path that a log must show, "" where any will do."""
        return next((engine.by_path for engine in self.engines if engine.by_path), "")

    @property
    def compiled(self) -> bool:
        """Whether it needs torch.compile."""
        return any(engine.compiled for engine in self.engines)


@dataclass(frozen=True, slots=True)
class NotExecutable:
    """Why no engine of the stack carries a strategy out."""

    reason: str


def execution_of(demand: StrategyDemand, stack: SoftwareStack) -> KnobExecution | NotExecutable:
    """Find the engine of each aspect; the first that the stack has."""
    engines, reasons = [], []
    for aspect, algorithm in demand.aspects():
        found = _engine(demand, aspect, algorithm, stack)
        if isinstance(found, NotExecutable):
            reasons.append(found.reason)
        else:
            engines.append(found)
    if reasons:
        return NotExecutable("; and ".join(reasons))
    knobs = [_filled(knob, demand) for engine in engines for knob in engine.knobs]
    return KnobExecution(tuple(engines), tuple(dict.fromkeys(knobs)))


def _engine(
    demand: StrategyDemand, aspect: Aspect, algorithm: str, stack: SoftwareStack
) -> GpuEngine | NotExecutable:
    serving = [e for e in ENGINES if e.aspect == aspect and _serves(e, demand, algorithm)]
    for engine in serving:
        if not stack.missing(engine.needs):
            return engine
    if serving:
        missing = "; or ".join(f"{e.name} needs {stack.missing(e.needs)}" for e in serving)
        return NotExecutable(missing)
    return NotExecutable(_nobody(demand, aspect, algorithm))


def _serves(engine: GpuEngine, demand: StrategyDemand, algorithm: str) -> bool:
    """Return whether an engine serves a demand, whatever its version."""
    part = demand.nbytes // max(1, demand.num_ranks) if engine.compiled else demand.nbytes
    return (
        (not engine.vendors or demand.vendor in engine.vendors)
        and (not engine.collectives or demand.collective in engine.collectives)
        and (not engine.algorithms or algorithm in engine.algorithms)
        and (not engine.producers or demand.producer in engine.producers)
        and part >= engine.at_least
        and (not engine.at_most or demand.nbytes <= engine.at_most)
        and (demand.in_node or not engine.in_node)
    )


def _nobody(demand: StrategyDemand, aspect: Aspect, algorithm: str) -> str:
    """Return why no engine of any version serves an aspect."""
    kind, vendor = demand.collective, demand.vendor
    match aspect:
        case "engines" if algorithm != "dma":
            reason = f"no library of {vendor} devices feeds copy engines as {algorithm} does"
        case "engines":
            why = ": copy engines copy, they do not add" if "reduce" in kind else ""
            reason = f"no library of {vendor} devices carries out this {kind} by copy engines{why}"
        case "algorithm":
            reason = f"no setting of the library selects {algorithm} for {kind}"
        case "fused":
            reason = (
                f"no engine fuses {demand.producer or 'the kernel before it'} with {kind} on "
                f"{vendor} devices (async TP of Inductor fuses matmul with reduce_scatter)"
            )
        case "codec":
            reason = f"no library of {vendor} devices encodes {kind}"
        case "bucket":
            reason = f"no engine joins {kind} into buckets of a given size"
        case "units" | "carveout" | "priority" | "exclusive":
            reason = f"no engine of {vendor} devices has {aspect}"
    return reason


# The names of collectives in NCCL_ALGO and in tuner files.
NCCL_NAMES = {
    "all_reduce": "allreduce",
    "all_gather": "allgather",
    "reduce_scatter": "reducescatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
}


def _filled(knob: Knob, demand: StrategyDemand) -> Knob:
    """Return a knob with the settings of the strategy in place of ``{..}``."""
    if not isinstance(knob.value, str) or "{" not in knob.value:
        return knob
    if knob.value == "{bucket}":
        return replace(knob, value=(demand.strategy.bucket or 0) / MIB)
    if knob.value == "{units}":
        return replace(knob, value=demand.strategy.units or 0)
    return replace(knob, value=knob.value.format(collective=NCCL_NAMES[demand.collective]))
