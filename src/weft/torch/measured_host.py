"""What torch spends around its ops here: Python, dispatch and autograd, by phase of a step.

A chain of small layers is trained on two ranks at once, phase by phase; what its phases take
beyond the ops that they consist of, each timed by itself, is overhead, shared out evenly.
"""

from __future__ import annotations

import time
from collections import Counter
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from weft.hardware.measured import TorchHost
from weft.runtime.measuring import RANKS, pin
from weft.runtime.spawn import spawn
from weft.torch.op_calls import captured_calls
from weft.torch.op_times import time_ops
from weft.torch.steady import steady_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.runtime.world import World

PHASES = ("forward", "backward", "optimizer")
_LAYERS, _WIDTH, _ROWS = 10, 128, 128
_REPEATS = 25
_TIMEOUT = 60.0


class Chain(nn.Module):
    """Layers that are no trouble to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(_WIDTH) for _ in range(_LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run them, each added to what came before."""
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.relu(layer(norm(x)))
        return x.square().mean()


def time_host() -> TorchHost:
    """Measure the overheads of one op in each phase of a step."""
    workload, calls = captured_calls(_prepared, 1, name="chain")
    ops = workload.steps[0].ops
    each = {called.call: 0.0 for called in calls[0].values()}
    for call, found in zip(each, time_ops(list(each)), strict=True):
        each[call] = found.warm
    count: Counter[str] = Counter(op.phase for op in ops)
    summed: Counter[str] = Counter()
    for number, called in calls[0].items():
        summed[ops[number].phase] += each[called.call]  # type: ignore[assignment]
    with steady_memory():
        taken = spawn(_phases, RANKS, timeout=_TIMEOUT)
    more = {
        phase: max(0.0, (sum(rank[phase] for rank in taken) / RANKS - summed[phase]) / count[phase])
        for phase in PHASES
    }
    return TorchHost(**more, version=torch.__version__)


def _prepared() -> Callable[[], Any]:
    acts = _acts()
    return lambda: [act() for act in acts.values()]


def _acts() -> dict[str, Callable[[], Any]]:
    """Give the phases of a step, to be carried out in turn."""
    model, x = Chain(), torch.rand(_ROWS, _WIDTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    loss: list[torch.Tensor] = []

    def forward() -> None:
        optimizer.zero_grad()
        loss[:] = [model(x)]

    def backward() -> None:
        loss[0].backward()  # type: ignore[no-untyped-call]

    return {"forward": forward, "backward": backward, "optimizer": optimizer.step}


def _phases(world: World) -> dict[str, float]:
    pin(world)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    acts = _acts()
    found: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for _ in range(_REPEATS):
        world.barrier()
        for phase, act in acts.items():
            begin = time.perf_counter()
            act()
            found[phase].append(time.perf_counter() - begin)
    return {phase: median(each) for phase, each in found.items()}
