"""The cost model of embedding lookups on this machine, fitted to measurements.

Lookups in one table on one core are timed, forward and backward, by torch and by weft. Code is warm
and data is cold, as inside a step: before every measurement memory is swept through the caches, and
then a tiny table is looked up. The sweep doubles as a probe: what was measured while it took longer
than usual, or while the thread was not on its core, does not count.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import median
from time import perf_counter, thread_time
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from weft._core import Pooling, pool_into
from weft.calibration.microbenchmarks import pin
from weft.calibration.steady_memory import steady_memory
from weft.cost.lookups import BACKWARD_LOOKUPS, BIN_NAMES, fitted_lookups
from weft.cost.matmul import Columns
from weft.cost.reuse import drawn_indices
from weft.hardware import Lookups, cache_bytes
from weft.models.tables import Table
from weft.runtime.spawn import spawn
from weft.runtime.world import World
from weft.torch.embedding.table_storage import large_pages

_SETS = 3  # of indices, one after another
_SWEPT = 48 << 20  # bytes, read and written: more than the last cache
_PROBE = 1.1  # times the usual sweep: beyond, others use the memory
_ON_CORE = 0.95  # of the time
_LEARNING = 1e-9  # rate: rows stay what they are
_TINY = 16


class TimedLookup(NamedTuple):
    """One measurement: its seconds, those of the sweep before, the share of them on the core."""

    seconds: float
    sweep: float
    share: float


class LookupTimes(NamedTuple):
    """The median of undisturbed measurements, and how far they lie from it in the mean."""

    seconds: float
    floor: float
    rounds: int


@dataclass
class _Bag:
    """One table, its optimizer, and what is looked up in it."""

    weight: nn.Parameter
    indices: list[Tensor]
    offsets: Tensor
    gradient: Tensor
    optimizer: torch.optim.SGD = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD([self.weight], lr=_LEARNING)

    def look_up(self, turn: int) -> Tensor:
        pooled: Tensor = functional.embedding_bag(
            self.indices[turn % len(self.indices)],
            self.weight,
            self.offsets,
            mode="sum",
            sparse=True,
            include_last_offset=True,
        )
        return pooled


class Stopwatch:
    """Measures tables that lie in one piece of memory of ``nbytes``, the largest there will be."""

    def __init__(self, nbytes: int) -> None:
        torch.set_num_threads(1)
        self._small = torch.full((nbytes // 4,), 0.5)
        self._large = large_pages((nbytes // 4, 1), torch.float32).fill_(0.5)
        self._swept = torch.zeros(_SWEPT, dtype=torch.uint8)
        self._tiny = _bag(Table("tiny", _TINY, _TINY, 4), _TINY, torch.zeros(_TINY * _TINY))
        self._found: dict[str, list[TimedLookup]] = {}
        self._sweeps: list[float] = []

    def times(self, table: Table, batch: int, rounds: int, most: int) -> Mapping[str, LookupTimes]:
        """Measure until there are ``rounds`` undisturbed ones of each kind, ``most`` in all."""
        self._found = {}
        by_torch = _bag(table, batch, self._small)
        by_weft = _Native(table, by_torch, self._large)
        for turn in range(most):
            self._by_torch(by_torch, turn)
            self._by_weft(by_weft, turn)
            if turn == 0:
                self._found = {}  # the first one warms up
            elif min(map(self._quiet, self._found)) >= rounds:
                break
        return {name: self._typical(name) for name in self._found}

    def _by_torch(self, bag: _Bag, turn: int) -> None:
        with self._timed("torch", lambda: self._tiny.look_up(0)) as warm:
            pooled = bag.look_up(turn)
        with self._timed("back", lambda: _backward(warm[0], self._tiny.gradient)):
            _backward(pooled, bag.gradient)
        with self._timed("step", self._tiny.optimizer.step):
            bag.optimizer.step()
        for each in (bag, self._tiny):
            each.optimizer.zero_grad()
        back, step = self._found.pop("back")[-1], self._found.pop("step")[-1]
        both = TimedLookup(
            back.seconds + step.seconds, max(back.sweep, step.sweep), min(back.share, step.share)
        )
        self._found.setdefault("torch_backward", []).append(both)

    def _by_weft(self, native: "_Native", turn: int) -> None:
        with self._timed("weft", lambda: None):
            native.look_up(turn)
        with self._timed("weft_backward", lambda: None):
            native.change(turn)

    @contextmanager
    def _timed(self, name: str, warm: Callable[[], Tensor | None]) -> Iterator[list[Tensor]]:
        begin = perf_counter()
        self._swept.add_(1)
        sweep = perf_counter() - begin
        self._sweeps.append(sweep)
        made = warm()
        busy, begin = thread_time(), perf_counter()
        yield [] if made is None else [made]
        passed = max(perf_counter() - begin, 1e-9)
        share = (thread_time() - busy) / passed
        self._found.setdefault(name, []).append(TimedLookup(passed, sweep, share))

    @property
    def _usual(self) -> float:
        """What a sweep takes when others leave the memory alone: a quarter are faster."""
        return float(np.quantile(self._sweeps, 0.25))

    def _quiet(self, name: str) -> int:
        return len(undisturbed(self._found[name], self._usual))

    def _typical(self, name: str) -> LookupTimes:
        taken = self._found[name]
        seconds = [each.seconds for each in undisturbed(taken, self._usual)]
        if len(seconds) < 2:  # a busy machine: those that it disturbed least
            seconds = sorted(each.seconds for each in taken)[: max(1, len(taken) // 3)]
        middle = median(seconds)
        return LookupTimes(
            middle, float(np.mean(np.abs(np.array(seconds) / middle - 1))), len(seconds)
        )


def undisturbed(taken: list[TimedLookup], usual: float) -> list[TimedLookup]:
    """Return the measurements that other processes did not disturb."""
    return [each for each in taken if each.share >= _ON_CORE and each.sweep <= _PROBE * usual]


def _backward(pooled: Tensor, gradient: Tensor) -> None:
    pooled.backward(gradient)  # type: ignore[no-untyped-call]


def _bag(table: Table, batch: int, memory: Tensor) -> _Bag:
    rng = np.random.default_rng([table.rows, table.dim, batch])
    count = batch * int(table.pooling)
    elements = memory[: table.rows * table.dim].view(table.rows, table.dim)
    return _Bag(
        nn.Parameter(elements),
        [torch.from_numpy(drawn_indices(table.rows, count, table.zipf, rng)) for _ in range(_SETS)],
        torch.arange(0, count + 1, int(table.pooling)),
        torch.full((batch, table.dim), 1e-6),
    )


class _Native:
    """The same lookups by weft's kernels, in a table that lies in large pages."""

    def __init__(self, table: Table, like: _Bag, memory: Tensor) -> None:
        self._batch, self._out = like.gradient.shape[0], torch.zeros_like(like.gradient)
        self._like, self._memory = like, memory
        size = (table.rows, 0, table.rows, table.dim, 0)
        self._shard = ("t", memory.data_ptr(), *size)
        self._pooling = Pooling(table.dim, 0)

    def _bags(self, turn: int) -> tuple[int, int, int, int, int, bool, bool]:
        indices = self._like.indices[turn % _SETS]
        there = indices.data_ptr(), self._like.offsets.data_ptr()
        return (*there, 0, indices.numel(), self._batch, True, True)

    def look_up(self, turn: int) -> None:
        out = self._out
        pool_into(
            self._shard, self._bags(turn), False, 0, self._batch, out.data_ptr(), out.shape[1]
        )

    def change(self, turn: int) -> None:
        self._pooling.set([self._shard], [(0, False, 0)], [self._bags(turn)], False)
        self._pooling.sort()
        self._pooling.set_results([(0, _LEARNING, 0.0, 0, 0, 0, 0)])
        self._pooling.change(self._like.gradient.data_ptr(), self._batch)


ITEM = 4  # bytes of an element
_TIMEOUT = 60.0
NBYTES = 256 << 20  # of the largest table
_LEAST = 24  # cases that a fit needs, however long they take
_MOST = 96
_ROUNDS, _TRIES = 2, 3  # undisturbed ones of each, and how many more are made for that
# Steps of a sequence that fills five dimensions evenly (Roberts 2018): powers of the root of
# x^6 = x + 1.
_STEPS = tuple(1.1347241384 ** -(k + 1) for k in range(5))
_DIMS = (16, 32, 64, 96, 128, 192, 256)


class LookupCase(NamedTuple):
    """A table and the batch that is looked up in it."""

    table: Table
    batch: int


Measured = list[tuple[LookupCase, Mapping[str, LookupTimes]]]


def measure_embedding(*, seconds: float = 8.0, ranks: int = 1) -> dict[str, Lookups]:
    """Measure lookups for about so long, in processes of their own, and fit what they take.

    Several ranks look up at the same time, as those of a job do: they share memory. The keys are
    those of ``Device.lookups``.
    """
    found = measured(list(cases()), seconds=seconds, ranks=ranks)
    given = [case for case, _ in found]
    caches = replace(
        Lookups(), **dict(zip(("inner_bytes", "outer_bytes"), cache_bytes(), strict=True))
    )
    return {
        name: _fitted(given, [t[name] for _, t in found], caches, backward=name in BACKWARD_LOOKUPS)
        for name in found[0][1]
    }


def measured(given: Sequence[LookupCase], *, seconds: float = 0.0, ranks: int = 1) -> Measured:
    """Measure cases in processes of their own, all or as many as ``seconds`` allow: the first's."""
    with steady_memory():
        found, *_ = spawn(_measure, ranks, list(given), seconds, timeout=_TIMEOUT)
    return found


def cases() -> Iterator[LookupCase]:
    """Yield tables and batches that cover the space of cases evenly."""
    for number in range(_MOST):
        yield spread_case(tuple((0.5 + number * step) % 1.0 for step in _STEPS))


def spread_case(point: Sequence[float]) -> LookupCase:
    """Return the case at a point of the unit cube."""
    rows, dim, pooling, lookups, zipf = point
    width = _DIMS[int(dim * len(_DIMS))]
    height = min(int(10 ** (3 + 3.7 * rows)), NBYTES // ITEM // width)
    pooled = int(10 ** (2 * pooling))
    batch = max(1, int(10 ** (3.7 + 1.3 * lookups)) // pooled)
    power = 0.0 if zipf < 0.25 else 0.5 + (zipf - 0.25) / 0.75 * 0.8
    return LookupCase(Table("t", height, width, pooled, power), batch)


def columns_of(given: list[LookupCase]) -> Columns:
    """Return cases as columns of the kernel family."""
    table = [case.table for case in given]
    found: dict[str, list[float]] = {
        "batch": [case.batch for case in given],
        **{
            name: [getattr(each, name) for each in table]
            for name in ("rows", "dim", "pooling", "zipf")
        },
        "tables": [1.0] * len(given),
        **{name: [0.0] * len(given) for name in BIN_NAMES},
    }
    return {name: np.array(values, float) for name, values in found.items()}


def _measure(world: World, given: list[LookupCase], seconds: float) -> Measured:
    pin(world)
    watch, begin = Stopwatch(NBYTES), perf_counter()
    found: Measured = []
    for case in given:
        found.append((case, watch.times(case.table, case.batch, _ROUNDS, _ROUNDS + _TRIES)))
        if seconds and len(found) >= _LEAST and perf_counter() - begin > seconds:
            break
    return found


def _fitted(
    given: list[LookupCase], times: list[LookupTimes], caches: Lookups, *, backward: bool
) -> Lookups:
    seconds = np.array([each.seconds for each in times])
    takes = fitted_lookups(columns_of(given), ITEM, seconds, caches, backward=backward)
    return replace(takes, floor=float(f"{np.mean([each.floor for each in times]):.3g}"))
