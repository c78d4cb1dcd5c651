"""An FSDP2 job that is planned for GPUs and follows its plan on the stand-in device."""

import os
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from tests.torch.gpu_apply_cases import LOG, RecordedJob, apply
from tests.torch.stand_in.device import NAME
from weft.torch.apply.gpu_plan import _param_groups

WIDTH, LAYERS = 1024, 2
SHARD = WIDTH * WIDTH * 4 // 2  # bytes of a layer on each of two ranks
STEPS = 4
STACK = {"nccl": "2.29", "torch": "2.13", "cuda": "13.0"}


def step(device: str = "cuda", rows: int = 8192) -> Any:
    """Prepare the job; ``weft plan`` captures the step that it returns."""
    torch.manual_seed(3)
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))).to(device)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    generator = torch.Generator().manual_seed(dist.get_rank())
    batch = torch.randn(rows, WIDTH, generator=generator).to(device)

    def train() -> Any:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    train.model = model  # type: ignore[attr-defined]
    return train


class Clocked(RecordedJob):
    """A job on the device whose time the test advances."""

    now = 0.0

    def mark(self) -> float:
        return self.now


def _applied(plan: str, folder: str) -> tuple[Any, Clocked, Any]:
    os.environ["NCCL_DEBUG_FILE"] = f"{folder}/nccl.%p.log"
    train = step(NAME, rows=4)
    job = Clocked(STACK, backend=f"cpu:gloo,{NAME}:{NAME}", device=NAME)
    return train, job, apply(plan, train.model, job=job)


def write_log(kernels: bool) -> None:  # noqa: FBT001 - one fact
    """Write what NCCL would have written of the gathers, by kernels or by copy engines."""
    if dist.get_rank() == 0:
        how = ("Symmetric", SHARD, "Kernel AllGather_LL nchannels 2 nthreads 512 nWorks 1")
        lines = LOG.format(*(how if kernels else ("Copy Engine", SHARD, "cudaMemcpy")))
        Path(os.environ["NCCL_DEBUG_FILE"].replace("%p", str(os.getpid()))).write_text(lines)


def prove(plan: str, folder: str, kernels: bool) -> dict[str, Any]:  # noqa: FBT001 - one fact
    """Train without the plan, then by it; a log says how the gathers were carried out."""
    plain = step(NAME, rows=4)
    expected = [plain().item() for _ in range(STEPS)]
    train, job, applied = _applied(plan, folder)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = []
        for _ in range(STEPS):
            found.append(train().item())
            write_log(kernels)
            applied.step()
    rows = [(r["collective"], r["planned"], r["path"], r["by_plan"]) for r in applied.rows()]
    return {
        "expected": expected,
        "found": found,
        "rows": rows,
        "withdrawn": applied.withdrawn,
        "made": job.made,
        "registered": job.registered,
        "said": [str(each.message) for each in caught],
    }


def contradict(plan: str, folder: str) -> dict[str, Any]:
    """Train by the plan until steps are measured that contradict it, then undo it."""
    train, job, applied = _applied(plan, folder)
    groups = [state for module in train.model.modules() for state in _param_groups(module)]
    by_plan = {type(each._all_gather_comm).__name__ for each in groups}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        while applied.state == "plan":
            job.now += 10.0
            train()
            applied.step()
    train()
    rows = {row["collective"]: row["by_default"] for row in applied.rows() if row["by_default"]}
    applied.remove()
    undone = {type(each._all_gather_comm).__name__ for each in groups}
    return {
        "said": [str(each.message) for each in caught],
        "by_default": rows,
        "carved": job.carved,
        "by_plan": by_plan,
        "undone": undone,
        "loss": train().item(),
    }
