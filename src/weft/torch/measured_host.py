"""What torch spends around its ops here: Python, dispatch and autograd, by phase of a step.

Reference models are trained on two ranks at once, phase by phase. What a phase takes beyond its
ops, each timed by itself and priced as in any step, is overhead, shared out evenly among them.
It may be less than nothing: an op that Python calls costs more than one that autograd calls.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from weft.hardware import cache_bytes
from weft.hardware.measured import TorchHost
from weft.runtime.measuring import RANKS, pin
from weft.runtime.spawn import spawn
from weft.torch.core_pace import Pace, Probe, best_pace, calm
from weft.torch.op_times import time_ops
from weft.torch.reference_steps import REFERENCES
from weft.torch.steady import steady_memory
from weft.torch.timed_steps import captured_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.runtime.world import World

PHASES = ("forward", "backward", "optimizer")
_WARMUPS, _REPEATS = 4, 30
_OF_OPS = 9  # repetitions of an op, some of which are calm
_TIMEOUT = 60.0

Taken = dict[tuple[str, str], float]  # by model and phase


def time_host() -> TorchHost:
    """Measure the overheads of one op in each phase; ranks share the last cache."""
    room = max(cache_bytes()) / RANKS
    steps = {name: captured_step(_whole(name), 1, name=name) for name in REFERENCES}
    calls = list(dict.fromkeys(call for step in steps.values() for call in step.unique))
    times = dict(zip(calls, time_ops(calls, repeats=_OF_OPS), strict=True))
    summed: Taken = defaultdict(float)
    count: Counter[tuple[str, str]] = Counter()
    for name, step in steps.items():
        called = step.calls[0]
        for number, op in enumerate(step.priced(times, room)):
            summed[name, op.phase] += op.seconds or 0.0
            count[name, op.phase] += 1 + called[number].free
    found = gaps(_taken(), summed, count)
    return TorchHost(
        found["forward"],
        found["backward"],
        found["optimizer"],
        cached=room,
        version=torch.__version__,
    )


def gaps(taken: Taken, summed: Taken, count: Counter[tuple[str, str]]) -> dict[str, float]:
    """Share what phases take beyond their ops among these, all models together."""
    found = {}
    for phase in PHASES:
        keys = [key for key in taken if key[1] == phase]
        more = sum(taken[key] - summed[key] for key in keys)
        found[phase] = float(f"{more / max(1, sum(count[key] for key in keys)):.4g}")
    return found


def _whole(name: str) -> Callable[[], Callable[[], Any]]:
    def prepare() -> Callable[[], Any]:
        phases = REFERENCES[name]()
        return lambda: [act() for act in phases.values()]

    return prepare


def _taken() -> Taken:
    """Give what phases take on both ranks in the mean: they do not wait for each other."""
    with steady_memory():
        ranks = spawn(_timed_phases, RANKS, timeout=_TIMEOUT)
    return {key: fmean(rank[key] for rank in ranks) for key in ranks[0]}


class _Phase(NamedTuple):
    """One phase carried out once."""

    seconds: float
    pace: Pace


def _timed_phases(world: World) -> Taken:
    pin(world)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    models, probe = {name: made() for name, made in REFERENCES.items()}, Probe()
    found: dict[tuple[str, str], list[_Phase]] = {}
    for turn in range(_WARMUPS + _REPEATS):
        for name, phases in models.items():
            world.barrier()
            for phase, act in phases.items():
                taken = _once(act, probe)
                if turn >= _WARMUPS:
                    found.setdefault((name, phase), []).append(taken)
    best = best_pace([each.pace for every in found.values() for each in every])
    return {key: median(each.seconds for each in calm(every, best)) for key, every in found.items()}


def _once(act: Callable[[], Any], probe: Probe) -> _Phase:
    first, begin = probe.product(), time.perf_counter()
    act()
    passed = time.perf_counter() - begin
    return _Phase(passed, Pace(max(first, probe.product()), probe.swept))
