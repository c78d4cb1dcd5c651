"""Capture a training step, plan it for this machine, train by the plan, and see what it did.

    python examples/plan_and_apply.py [--ranks 2] [--steps 40]

The model has embedding tables that the ranks share and dense layers under DDP. The plan is made
before any rank is started, from fake tensors; every rank applies it and says, at the end, which
path each collective took and how long steps were compared with the prediction.
"""

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import weft
import weft.torch
from weft.hardware import here_path

TABLES, ROWS, DIM, BATCH, POOLING = 8, 20_000, 32, 512, 10
Step = Callable[[], torch.Tensor]


class Model(nn.Module):
    """Tables on the ranks that hold them, and two layers on top."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding: nn.Module = weft.torch.EmbeddingBags(
            [(ROWS, DIM)] * TABLES, optimizer=weft.torch.SGD(0.01)
        )
        self.top: nn.Module = nn.Sequential(
            nn.Linear(TABLES * DIM, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, indices: list[torch.Tensor], offsets: list[torch.Tensor]) -> torch.Tensor:
        """Return a logit a sample."""
        logits: torch.Tensor = self.top(self.embedding(indices, offsets)).squeeze(1)
        return logits


def training(plan: weft.Plan | None = None) -> tuple[Step, weft.torch.Applied | None]:
    """Prepare one step, with a plan or as torch does it; ranks begin with the same weights."""
    torch.manual_seed(0)
    model = Model()
    applied = None if plan is None else weft.torch.apply(plan, model)
    wrap = nn.parallel.DistributedDataParallel if applied is None else applied.ddp
    model.top = wrap(model.top)
    optimizer = torch.optim.SGD(model.top.parameters(), lr=0.01)
    held, samples = TABLES // dist.get_world_size(), BATCH // dist.get_world_size()
    indices = [torch.randint(0, ROWS, (BATCH * POOLING,)) for _ in range(held)]
    offsets = [torch.arange(0, BATCH * POOLING + 1, POOLING)] * held
    clicks = torch.rand(samples).round()

    def step() -> torch.Tensor:
        logits = model(indices, offsets)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, clicks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if applied is not None:
            applied.step()
        return loss.detach()

    return step, applied


def train(world: weft.World, store: str, plan: bytes, steps: int) -> tuple[list[float], str]:
    """Train on one rank by the plan; return losses, and what became of the plan."""
    torch.set_num_threads(1)
    place = dist.FileStore(store, world.num_ranks)  # type: ignore[attr-defined]
    dist.init_process_group("weft", store=place, rank=world.rank, world_size=world.num_ranks)
    try:
        step, applied = training(weft.Plan.from_json(plan))
        losses = [float(step()) for _ in range(steps)]
        return losses, "" if applied is None else applied.report()
    finally:
        dist.destroy_process_group()


def main() -> None:
    """Plan, start the ranks, and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=40)
    asked = parser.parse_args()
    name = "here" if here_path().is_file() else "cpu"  # weft calibrate makes the first
    machine = weft.platform(name, num_ranks=asked.ranks)
    workload = weft.capture(lambda: training()[0], asked.ranks, name="example", as_gpu=False)
    plan = weft.plan(workload, machine)
    print(f"planned on {machine.name}: {plan.speedup:.2f}x")
    with tempfile.TemporaryDirectory() as folder:
        found = weft.spawn(
            train, asked.ranks, str(Path(folder) / "store"), plan.to_json(), asked.steps
        )
    losses, report = found[0]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {asked.steps} steps\n{report}")


if __name__ == "__main__":
    main()
