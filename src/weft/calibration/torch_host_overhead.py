"""The overhead of torch per op: Python, dispatch and autograd, by phase of a step.

A reference model is trained on two ranks at once, phase by phase. What a phase takes beyond its
ops, each timed by itself and priced as in any step, is overhead, shared out evenly among them.
It may be less than nothing: an op that Python calls costs more than one that autograd calls.

Phases and ops take rounds, and each turn has its own overhead, because the difference of two times
of other moments is mostly the difference of these: from -21 to 33 us an op of the forward pass in
five calibrations, in turn from -3 to 11 us in ten.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from weft.calibration.microbenchmarks import RANKS, pin
from weft.calibration.steady_memory import steady_memory
from weft.calibration.torch_op_times import OpSequence, Repetition, groups, typical
from weft.calibration.torch_timed_steps import captured_step
from weft.hardware import cache_bytes
from weft.hardware.measured import TorchHost
from weft.runtime.spawn import spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from weft.calibration.torch_op_calls import OpCall
    from weft.runtime.world import World

PHASES = ("forward", "backward", "optimizer")
_WARMUPS, _ROUNDS = 1, 10
_TIMEOUT = 60.0

Taken = dict[str, float]  # seconds by phase


def time_host() -> TorchHost:
    """Measure the overheads of one op in each phase."""
    host = HostOverhead()
    return host.typical(host.rounds(_ROUNDS))


class HostOverhead:
    """Overheads of torch, measured turn by turn; ranks share the last cache."""

    def __init__(self) -> None:
        self._room = max(cache_bytes()) / RANKS
        self._step = captured_step(_whole_step, 1, name="reference")
        self._calls = self._step.unique

    def rounds(self, count: int) -> list[dict[str, float]]:
        """Measure some rounds: overheads of an op by phase."""
        with steady_memory():
            ranks = spawn(_timed_turns, RANKS, self._calls, count, timeout=_TIMEOUT)
        return [self._gaps(rounds) for rounds in zip(*ranks, strict=True)]

    def typical(self, rounds: Sequence[Mapping[str, float]]) -> TorchHost:
        """Return the median of rounds."""
        forward, backward, optimizer = (
            float(f"{median(each[phase] for each in rounds):.4g}") for phase in PHASES
        )
        return TorchHost(forward, backward, optimizer, cached=self._room, version=torch.__version__)

    def _gaps(self, rounds: Sequence[_Round]) -> dict[str, float]:
        """Return the overheads of a turn by the mean of both ranks, which do not wait."""
        taken = {key: fmean(turn.phases[key] for turn in rounds) for key in rounds[0].phases}
        every = typical([[[op] for op in turn.ops] for turn in rounds])
        times = dict(zip(self._calls, every, strict=True))
        summed: Taken = defaultdict(float)
        count: Counter[str] = Counter()
        called = self._step.calls[0]
        for number, op in enumerate(self._step.priced(times, self._room)):
            summed[op.phase] += op.seconds or 0.0
            count[op.phase] += 1 + called[number].free
        return gaps(taken, summed, count)


def gaps(taken: Taken, summed: Taken, count: Counter[str]) -> Taken:
    """Return the overhead per op of each phase: its duration minus that of its ops."""
    return {phase: (taken[phase] - summed[phase]) / max(1, count[phase]) for phase in PHASES}


def _whole_step() -> Callable[[], Any]:
    phases = reference_step()
    return lambda: [act() for act in phases.values()]


class _Round(NamedTuple):
    """Seconds of the phases, and those of their ops right after them."""

    phases: Taken
    ops: list[Repetition]


def _timed_turns(world: World, calls: list[OpCall], count: int) -> list[_Round]:
    pin(world)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    step = reference_step()
    ops = [OpSequence(world, group) for group in groups(calls)]
    rounds = []
    for _ in range(_WARMUPS + count):
        _timed_phases(world, step)  # in a loop of training every step follows another one
        phases = _timed_phases(world, step)
        rounds.append(_Round(phases, [one for some in ops for one in some.repeated(1)[0]]))
    return rounds[_WARMUPS:]


def _timed_phases(world: World, step: Phases) -> Taken:
    found = {}
    world.barrier()
    for phase, act in step.items():
        begin = time.perf_counter()
        act()
        found[phase] = time.perf_counter() - begin
    return found


Phases = dict[str, Callable[[], Any]]


class ReferenceBlock(nn.Module):
    """Attention and an inner layer, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Run it on (sequences, tokens, width)."""
        q, k, v = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.qkv(self.norms[0](x)).chunk(3, -1)
        )
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(-2))
        inner: Tensor = self.down(functional.gelu(self.up(self.norms[1](x))))
        return x + inner


class ReferenceModel(nn.Module):
    """Blocks between an embedding and a head: the time of its step beyond its ops is overhead.

    It has attention and many small ops: of a few large ones a hundredth of their time looks like
    much overhead of an op. It touches more than the caches hold, as models do that people train: of
    a smaller one everything counts as cached, and what it takes to get data from the last cache
    looks like overhead (20 us an op of the forward pass instead of 5 to 12). It is never predicted.
    """

    def __init__(self, width: int, heads: int, depth: int, vocab: int) -> None:
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        self.blocks = nn.Sequential(*(ReferenceBlock(width, heads) for _ in range(depth)))
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Run them and give a loss."""
        scores = self.head(self.blocks(self.table(tokens)))
        return functional.cross_entropy(scores.flatten(0, 1), tokens.flatten())


def reference_step() -> Phases:
    """Return the phases of a step of the model."""
    model = ReferenceModel(128, 4, 3, 2048)
    given = torch.randint(0, 2048, (8, 64))
    return _phases(model, given, torch.optim.AdamW(model.parameters(), lr=1e-5))


def _phases(model: nn.Module, given: Tensor, optimizer: torch.optim.Optimizer) -> Phases:
    loss: list[Tensor] = []

    def forward() -> None:
        optimizer.zero_grad()
        loss[:] = [model(given)]

    def backward() -> None:
        loss[0].backward()  # type: ignore[no-untyped-call]

    return {"forward": forward, "backward": backward, "optimizer": optimizer.step}
