"""Jobs that follow a plan for GPUs on CPU tensors: a stand-in job records what it is asked for."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import weft.torch
from tests.gpu.toy_plans import plan_for
from weft.gpu.collective_paths import read_nccl_log
from weft.hardware.software_stack import SoftwareStack, assumed_stack
from weft.torch.apply.gpu_plan import AppliedOnGpus
from weft.torch.backend.c10d import all_gather_single

DIM = 16
LAYER = DIM * DIM * 4  # bytes of one layer's parameters


@dataclass
class RecordedJob:
    """A job on CPU tensors: Gloo communicators, ordinary memory as symmetric memory."""

    versions: dict[str, str] = field(default_factory=lambda: dict(assumed_stack("NVIDIA").versions))
    lacks: tuple[str, ...] = ()
    why_not: str = ""
    no_peers: str = ""
    clock: Any = time.perf_counter
    backend: str = "gloo"
    device: str = "cpu"
    made: list[Any] = field(default_factory=list)
    carved: list[int | None] = field(default_factory=list)
    registered: list[int] = field(default_factory=list)
    allocated: set[int] = field(default_factory=set)
    waited: int = 0

    def stack(self) -> SoftwareStack:
        return SoftwareStack(self.versions, basis="detected")

    def missing(self, knobs: Any) -> list[str]:
        return [knob.name for knob in knobs if knob.name in self.lacks]

    def refusal(self) -> str:
        return self.why_not

    def no_peer_access(self) -> str:
        return self.no_peers

    def communicator(self, ranks: Any, options: Any) -> Any:
        self.made.append((tuple(ranks), {knob.name: knob.value for knob in options}))
        return dist.new_group(list(ranks), backend=self.backend, use_local_synchronization=True)

    def symmetric(self, shape: Any, dtype: Any, device: Any) -> torch.Tensor:
        made = torch.empty(*shape, dtype=dtype, device=device)
        self.allocated.add(made.untyped_storage().data_ptr())
        return made

    def rendezvous(self, tensor: Any, group: Any) -> bool:  # noqa: ARG002 - as the interface
        self.registered.append(tensor.nbytes)
        return tensor.untyped_storage().data_ptr() in self.allocated

    def carve_out(self, units: int | None) -> None:
        self.carved.append(units)

    def wait_for_all(self) -> None:
        self.waited += 1

    def mark(self) -> Any:
        return self.clock()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def scalar(self, value: float) -> torch.Tensor:
        return torch.tensor([value], dtype=torch.float64, device=self.device)


def apply(plan: Any, model: Any, job: Any) -> AppliedOnGpus:
    applied = weft.torch.apply(plan, model, job=job)
    assert isinstance(applied, AppliedOnGpus)
    return applied


def model_of() -> nn.Module:
    torch.manual_seed(3)
    layers = [nn.Linear(DIM, DIM, bias=False) for _ in range(3)]
    model = nn.Sequential(*layers)
    for layer in layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return model


def train(model: nn.Module, steps: int, applied: Any = None) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for step in range(steps):
        torch.manual_seed(10 * step + dist.get_rank())
        loss = model(torch.randn(4, DIM)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if applied is not None:
            applied.step()
    return losses


FSDP_PLAN = (
    ("all_gather", LAYER, "dma", {"engines": 1}),
    ("reduce_scatter", LAYER, "priority+partition", {"units": 16, "priority": 1}),
)


def fsdp2() -> tuple[Any, ...]:
    """Train by torch alone, then by a plan with copy engines and a partition."""
    plain = train(model_of(), 3)
    job = RecordedJob()
    model = model_of()
    applied = apply(plan_for("h100-8", *FSDP_PLAN, ranks=2), model, job=job)
    planned = train(model, 3, applied)
    rows = [(r["collective"], r["planned"], r["path"], r["by_plan"]) for r in applied.rows()]
    applied.remove()
    after = train(model, 1)
    return plain, planned, job.made, job.carved, set(job.registered), rows, after, applied.report()


def ddp() -> tuple[Any, ...]:
    """Make a DDP with the buckets and the communicator of a plan."""
    job = RecordedJob()
    made = plan_for(
        "h100-8",
        ("all_reduce", LAYER, "priority", {"priority": 1, "bucket": 1 << 20}),
        ranks=2,
    )
    applied = apply(made, None, job=job)
    model = applied.ddp(nn.Linear(DIM, DIM))
    model(torch.ones(2, DIM)).sum().backward()
    group: Any = applied.group("all_reduce")
    return model.bucket_bytes_cap, model.process_group is group, job.made


def refused() -> list[str]:
    """Apply what this job cannot execute."""
    rank = dist.get_rank()
    versions = dict(assumed_stack("NVIDIA").versions)
    jobs = {
        "no GPU": RecordedJob(why_not="this process sees no GPU" if rank else ""),
        "another NCCL": RecordedJob({**versions, "nccl": "2.28.3" if rank else "2.29"}),
        "older": RecordedJob({"torch": "2.4", "nccl": "2.21.5", "cuda": "12.4"}),
        "lacking": RecordedJob(lacks=("config.cta_policy",)),
        "no peers": RecordedJob(no_peers="cuda:0 and cuda:1"),
    }
    made, found = plan_for("h100-8", *FSDP_PLAN, ranks=2), []
    for job in jobs.values():
        try:
            apply(made, None, job=job)
        except weft.errors.PlanError as error:
            found.append(f"{error} | {error.hint}")
    with_mori = SoftwareStack({"torch": "2.13", "rocm": "7.1", "mori": "1.0"})
    sums = ("reduce_scatter", 64 << 20, "dma", {"engines": 7})
    try:
        made_for_mori = plan_for("mi300x-8", sums, ranks=2, stack=with_mori)
        apply(made_for_mori, None, job=RecordedJob(dict(with_mori.versions)))
    except weft.errors.PlanError as error:
        found.append(str(error))
    try:
        apply(plan_for("mi300x-8", ranks=2), None, job=RecordedJob())
    except weft.errors.PlanError as error:
        found.append(str(error))
    try:
        apply(replace(made, num_ranks=4), None, job=RecordedJob())
    except weft.errors.PlanError as error:
        found.append(str(error))
    return found


def another_stack() -> list[str]:
    """Apply a plan on a stack that can execute it and is not the one it was made for."""
    newer = {**assumed_stack("NVIDIA").versions, "nccl": "2.31"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        apply(plan_for("h100-8", *FSDP_PLAN, ranks=2), None, job=RecordedJob(newer))
    return [str(each.message) for each in caught]


def of_a_file(path: str) -> tuple[str, str]:
    """Apply a plan for a machine of a platform file, without the file and with it."""
    made = replace(plan_for("h100-8", *FSDP_PLAN, ranks=2), platform="node-checked")
    try:
        weft.torch.apply(made, job=RecordedJob())
        said = ""
    except weft.errors.PlanError as error:
        said = f"{error} | {error.hint}"
    return said, weft.torch.apply(made, on=path, job=RecordedJob()).state


LOG = """
node1:77:77 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 - Init COMPLETE
node1:77:77 [0] NCCL INFO AllGather [{}]: {} Bytes -> {}
"""


def proof(fell_back: bool) -> tuple[Any, ...]:  # noqa: FBT001 - one fact
    """Prove the path of a planned all-gather by a log, or that it was not taken."""
    applied = apply(plan_for("h100-8", *FSDP_PLAN, ranks=2), None, job=RecordedJob())
    kernel = ("Symmetric", LAYER // 2, "Kernel AllGather_LL nchannels 2 nthreads 512 nWorks 1")
    copies = ("Copy Engine", LAYER // 2, "cudaMemcpy; CE synchronization with NVLS")
    text = LOG.format(*(kernel if fell_back else copies)) if dist.get_rank() == 0 else ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        applied.prove(read_nccl_log(text.splitlines()).paths)
    rows = [row["path"] for row in applied.rows()]
    return applied.withdrawn, rows, [str(each.message) for each in caught], applied.report()


def contradicted() -> tuple[Any, ...]:
    """Make planned steps take longer than the default is predicted to; return what follows."""
    now = [0.0]
    job = RecordedJob(clock=lambda: now[0])
    model = model_of()
    applied = apply(plan_for("h100-8", *FSDP_PLAN, ranks=2), model, job=job)
    said: list[str] = []
    for _ in range(40):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model(torch.ones(2, DIM)).sum().backward()
            now[0] += 1.8 if applied.state == "default" else 3.0
            applied.step()
        said += [str(each.message) for each in caught]
    rows = {row["collective"]: (row["by_plan"], row["by_default"]) for row in applied.rows()}
    return applied.state, said, job.carved, rows


def weft_group() -> tuple[Any, ...]:
    """Route every call of a weft group on tensors of another device, here meta tensors."""
    dist.Backend.register_backend("fake_device", _fake, devices=["meta"])
    job = _MetaJob()
    made = plan_for(
        "h100-8",
        ("all_gather", 1 << 20, "partition", {"units": 8}),
        ("all_to_all", 1 << 20, "serial", {}),
        ranks=2,
    )
    applied = apply(made, None, job=job)
    output, part = torch.empty(1 << 18, device="meta"), torch.empty(1 << 17, device="meta")
    for _ in range(2):
        all_gather_single(output, part)
        dist.all_to_all_single(output, output.clone())
        dist.all_reduce(part)
    rows = {r["collective"]: (r["planned"], r["by_plan"]) for r in applied.rows() if r["by_plan"]}
    applied.remove()
    all_gather_single(output, part)
    return rows, job.waited, job.made


class _MetaJob(RecordedJob):
    def communicator(self, ranks: Any, options: Any) -> Any:  # noqa: ARG002 - as the interface
        self.made.append({knob.name: knob.value for knob in options})
        world: Any = dist.group.WORLD
        return world.device_group("meta")


def _fake(store, rank, size, timeout):
    from torch._C._distributed_c10d import FakeProcessGroup

    return FakeProcessGroup._create_internal(rank, size)
