"""The cost model of embedding lookups on this machine, fitted to measurements."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

import numpy as np

from weft.calibration.microbenchmarks import pin
from weft.calibration.steady_memory import steady_memory
from weft.calibration.torch_lookup_times import LookupTimes, Stopwatch
from weft.cost.lookups import BIN_NAMES, TERMS, core_seconds, fitted_lookups
from weft.cost.matmul import Columns
from weft.hardware import Lookups, Platform, cache_bytes
from weft.models.tables import Table
from weft.runtime.spawn import spawn
from weft.runtime.world import World

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
    return {name: _fitted(name, given, [t[name] for _, t in found], caches) for name in found[0][1]}


def measured(given: Sequence[LookupCase], *, seconds: float = 0.0, ranks: int = 1) -> Measured:
    """Measure cases in processes of their own, all or as many as ``seconds`` allow: the first's."""
    with steady_memory():
        found, *_ = spawn(_measure, ranks, list(given), seconds, timeout=_TIMEOUT)
    return found


def corrected_lookups(here: Platform, found: Sequence[Measured]) -> Platform:
    """Return the platform with its lookup costs scaled to the median of these measurements."""
    device, lookups = here.require_device(), {}
    for name, takes in device.lookups.items():
        rows = [(case, times[name].seconds) for each in found for case, times in each]
        columns = columns_of([case for case, _ in rows])
        by_law = core_seconds(columns, ITEM, takes, backward=name.endswith("_backward"))
        off = float(np.exp(np.median(np.log([seconds for _, seconds in rows] / by_law))))
        lookups[name] = replace(takes, **{term: off * getattr(takes, term) for term in TERMS})
    return replace(here, device=replace(device, lookups=lookups))


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
    name: str, given: list[LookupCase], times: list[LookupTimes], caches: Lookups
) -> Lookups:
    backward = name.endswith("_backward")
    seconds = np.array([each.seconds for each in times])
    takes = fitted_lookups(columns_of(given), ITEM, seconds, caches, backward=backward)
    return replace(takes, floor=float(f"{np.mean([each.floor for each in times]):.3g}"))
