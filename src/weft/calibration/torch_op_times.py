"""Durations of single ops of torch, with cold and with warm caches.

Two ranks, each on a core of its own, carry out the same op at the same time, as the ranks of a
data-parallel job do. Nothing of the step that is predicted is ever run.

What a core did just before decides how fast it is: a product of small matrices that takes 21 us in
a loop takes 25 us after scalar code, 40 us after a millisecond of sleep and 45 us after rows of a
table were changed, and stays slow for milliseconds. So ops are timed in the order in which they
were given, which is that of the step, each behind another op and not behind a warm-up of its own,
and every repetition counts: a slow one is as likely in a step.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache
from statistics import fmean, median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from weft.calibration.microbenchmarks import RANKS, pin
from weft.calibration.steady_memory import steady_memory
from weft.hardware.files import here_path
from weft.runtime.spawn import spawn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from weft.calibration.torch_op_calls import OpCall
    from weft.runtime.world import World

_REPEATS = 5
_TIMEOUT = 120.0
# Ops of a group are timed after one sweep: their data together are more than caches hold anyway.
_GROUP_OPS, _GROUP_BYTES = 24, 256 << 20
_SWEPT = 48 << 20  # bytes that a rank goes through so that no cache holds anything else


class OpTime(NamedTuple):
    """Seconds of an op: ``cold`` with its data in memory only, ``warm`` with it in the caches.

    ``spread`` is how far a repetition was from the middle of all, in the middle.
    """

    cold: float
    warm: float
    spread: float = 0.0


class Repetition(NamedTuple):
    """An op carried out once with its data in memory and once more."""

    cold: float
    warm: float


Repeated = list[Repetition]


def time_ops(calls: Sequence[OpCall], *, repeats: int = _REPEATS, threads: int = 1) -> list[OpTime]:
    """Time every call on two ranks at once, in one thread each, or on one rank in several."""
    return typical(repeat_ops(calls, repeats=repeats, threads=threads))


def repeat_ops(
    calls: Sequence[OpCall], *, repeats: int = _REPEATS, threads: int = 1
) -> list[list[Repeated]]:
    """Repeat every call; gives the repetitions by rank and call."""
    ranks = RANKS if threads == 1 else 1
    with steady_memory() if threads == 1 else nullcontext():
        return spawn(_repeated_calls, ranks, list(calls), repeats, threads, timeout=_TIMEOUT)


def typical(found: Sequence[Sequence[Repeated]]) -> list[OpTime]:
    """Return the duration of calls from the repetitions of each rank.

    A rank meets the other only now and then, so what both take in the mean counts: the slower
    of the two in every single op would be more than the slower of two steps.
    """
    return [
        OpTime(*(fmean(values) for values in zip(*map(_typical, each), strict=True)))
        for each in zip(*found, strict=True)
    ]


def _typical(kept: Repeated) -> OpTime:
    """Return the median of some repetitions."""
    cold, warm = median(each.cold for each in kept), median(each.warm for each in kept)
    return OpTime(cold, warm, median(abs(each.cold / max(cold, 1e-12) - 1) for each in kept))


def _repeated_calls(
    world: World, calls: list[OpCall], repeats: int, threads: int
) -> list[Repeated]:
    if threads == 1:
        pin(world)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    return [
        list(each)
        for group in groups(calls)
        for each in zip(*OpSequence(world, group).repeated(repeats), strict=True)
    ]


def groups(calls: Sequence[OpCall]) -> Iterator[list[OpCall]]:
    """Yield groups of calls whose data fit into memory together."""
    group: list[OpCall] = []
    room = _GROUP_BYTES
    for call in calls:
        room -= sum(each.nbytes for each in call.tensors)
        if group and (room < 0 or len(group) == _GROUP_OPS):
            yield group
            group, room = [], _GROUP_BYTES - sum(each.nbytes for each in call.tensors)
        group.append(call)
    if group:
        yield group


class OpSequence:
    """Some calls with their data, carried out one behind the other."""

    def __init__(self, world: World, calls: Sequence[OpCall]) -> None:
        self._world = world
        self._acts = [_act(call) for call in calls]
        for act in self._acts:
            act()  # what only a first call does

    def repeated(self, repeats: int) -> list[list[Repetition]]:
        """Run all of them several times."""
        with torch.no_grad():
            return [self._once() for _ in range(repeats)]

    def _once(self) -> list[Repetition]:
        _sweep()
        found = []
        # A result lives until the next op has its own: no op finds memory that was just used.
        kept: list[object] = []
        for act in self._acts:
            self._world.barrier()
            cold, kept[:] = _timed(act)
            warm, kept[:] = _timed(act)
            found.append(Repetition(cold, warm))
        return found


def _sweep() -> None:
    """Evict the caches by writing a large array."""
    swept = _swept()
    np.add(swept, 1.0, out=swept)


@cache
def _swept() -> NDArray[np.float64]:
    return np.ones(_SWEPT // 8)


def _act(call: OpCall) -> Callable[[], object]:
    function = call.function
    args, kwargs = call.made(np.random.default_rng(0))
    return lambda: function(*args, **kwargs)


def _timed(act: Callable[[], object]) -> tuple[float, tuple[object]]:
    begin = time.perf_counter()
    made = act()
    return time.perf_counter() - begin, (made,)


def ops_path() -> Path:
    """Return the file of the times of single ops, next to the calibration."""
    return here_path().with_name("here-ops.json")


def stored_times(calls: Sequence[OpCall]) -> dict[OpCall, OpTime]:
    """Return the times of all calls; unknown ones are measured and cached.

    A new calibration of the machine makes what was kept before it worthless.
    """
    kept = _read()
    keys = {call: _key(call) for call in calls}
    missing = [call for call, key in keys.items() if key not in kept]
    if missing:
        kept |= {
            keys[call]: list(found) for call, found in zip(missing, time_ops(missing), strict=True)
        }
        _write(kept)
    return {call: OpTime(*kept[key]) for call, key in keys.items()}


def _key(call: OpCall) -> str:
    return hashlib.blake2b(repr(call).encode(), digest_size=12).hexdigest()


def _read() -> dict[str, list[float]]:
    path, calibration = ops_path(), here_path()
    try:
        if calibration.exists() and calibration.stat().st_mtime > path.stat().st_mtime:
            return {}
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError):
        return {}
    if found.get("torch") != torch.__version__:
        return {}
    times: dict[str, list[float]] = found["times"]
    return times


def _write(kept: dict[str, list[float]]) -> None:
    path = ops_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps({"torch": torch.__version__, "times": kept}), encoding="utf-8")
    part.replace(path)
