"""Train a small DLRM on synthetic click logs with two ranks, fused and unfused side by side.

    python examples/dlrm.py [--ranks 2] [--steps 30]

Features are drawn as Criteo's look: 13 numbers, and for each of 16 tables a bag of ids whose
popularity follows Zipf's law. Both models begin alike and see the same samples; the unfused one
pools with nn.EmbeddingBag and exchanges with all_to_all_single, the fused one does both at once.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist

import weft
import weft.torch

sys.path.append(str(Path(__file__).parents[1]))  # the models of the benchmarks

from benchmarks.lookups import Lookups
from benchmarks.torch_dlrm import Dlrm

SHAPE = Lookups(tables=16, rows=20_000, dim=32, batch=1024, pooling=10, zipf=1.05)


def train(world: weft.World, store: str, steps: int) -> list[tuple[float, float, float, float]]:
    """Train on one rank; return seconds and losses of every step, unfused and fused."""
    torch.set_num_threads(1)
    place = dist.FileStore(store, world.num_ranks)  # type: ignore[attr-defined]
    dist.init_process_group("weft", store=place, rank=world.rank, world_size=world.num_ranks)
    try:
        both = [Dlrm(SHAPE, world.rank, world.num_ranks, fused=fused) for fused in (False, True)]
        for model in both:
            model.reset()
        rows = []
        for step in range(steps):
            unfused, fused = (_timed(model, step) for model in both)
            rows.append((*unfused, *fused))
        return rows
    finally:
        dist.destroy_process_group()


def _timed(model: Dlrm, step: int) -> tuple[float, float]:
    begin = time.perf_counter()
    loss = model.step(step)
    return time.perf_counter() - begin, loss


def main() -> None:
    """Start the ranks and print what they found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = weft.spawn(train, asked.ranks, str(Path(folder) / "store"), asked.steps)[0]
    print("step   unfused: loss      ms    fused: loss      ms")
    for step, (a, loss_a, b, loss_b) in enumerate(rows):
        if step % max(asked.steps // 10, 1) == 0 or step == asked.steps - 1:
            print(f"{step:4d}  {loss_a:14.6f} {1e3 * a:7.2f} {loss_b:14.6f} {1e3 * b:7.2f}")
    later = rows[len(rows) // 3 :]
    plain, fused = median(r[0] for r in later), median(r[2] for r in later)
    apart = max(abs(r[1] - r[3]) for r in rows)
    print(
        f"\nmedian step {1e3 * plain:.2f} ms unfused, {1e3 * fused:.2f} ms fused: "
        f"{plain / fused:.2f}x; losses differ by at most {apart:.1e}"
    )


if __name__ == "__main__":
    main()
