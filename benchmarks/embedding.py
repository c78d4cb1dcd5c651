"""Lookups in embedding tables: what the calibration of some seconds says, and what they take.

Cases are drawn at random, unseen by the calibration, and measured in fresh processes, so that the
floor of an error is how far such processes lie from each other.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.rows import Options, Row
from weft.cost.fit_errors import geomean_error
from weft.cost.lookups import BACKWARD_LOOKUPS, core_seconds

if TYPE_CHECKING:
    from weft.calibration.torch_lookup_rates import LookupCase
    from weft.hardware import Lookups

QUESTION = "How well are lookups in embedding tables predicted here?"
KINDS = ("torch", "torch_backward", "weft", "weft_backward")
_SEEDS = (1, 2)
_CASES = 16  # a seed
_PROCESSES = 5
_SECONDS = 8.0  # of calibration
_GOAL, _FLOORS = 0.06, 1.5  # an error is at most the larger of that and so many floors


def count_rows(options: Options) -> int:
    """Return how many rows there are: cases by kind, and one for all of a kind."""
    return len(_chosen(options)) * (_CASES * len(options.seeds or _SEEDS) + 1)


def _chosen(options: Options) -> tuple[str, ...]:
    return tuple(each for each in KINDS if not options.algorithms or each in options.algorithms)


def run(options: Options) -> Iterator[Row]:
    """Calibrate, measure every case in several processes, and compare; ``--algorithm`` narrows."""
    from weft.calibration.torch_lookup_rates import measure_embedding, measured

    found = measure_embedding(seconds=_SECONDS)
    given = [case for seed in options.seeds or _SEEDS for case in drawn_cases(seed)]
    turns = [measured(given) for _ in range(max(2, min(options.rounds, _PROCESSES)))]
    for kind in _chosen(options):
        times = np.array([[by[kind].seconds for _, by in turn] for turn in turns]).T
        yield from compared(kind, given, times, found)


def drawn_cases(seed: int) -> list["LookupCase"]:
    """Draw the cases of a seed."""
    from weft.calibration.torch_lookup_rates import spread_case

    points = np.random.default_rng([7, seed]).random((_CASES, 5))
    return [spread_case(point.tolist()) for point in points]


def compared(
    kind: str, given: Sequence["LookupCase"], times: Any, found: Mapping[str, "Lookups"]
) -> Iterator[Row]:
    """Yield a row a case, with what its price would be if rows were asked for evenly."""
    from weft.calibration.torch_lookup_rates import ITEM, columns_of

    columns, backward = columns_of(list(given)), kind in BACKWARD_LOOKUPS
    even = {**columns, "zipf": np.zeros_like(columns["zipf"])}
    predicted, uniform = (
        core_seconds(each, ITEM, found[kind], backward=backward) for each in (columns, even)
    )
    middle = np.median(times, axis=1)
    floors = np.abs(times / middle[:, None] - 1).mean(axis=1)
    for number, case in enumerate(given):
        more = {
            "predicted": float(predicted[number]),
            "measured": float(middle[number]),
            "error": float(predicted[number] / middle[number] - 1),
            "floor": float(floors[number]),
            "uniform_error": float(uniform[number] / middle[number] - 1),
        }
        yield Row("embedding", _case(kind, case), tuple(times[number].tolist()), {}, more)
    yield _all(kind, middle, predicted, uniform, floors)


def _case(kind: str, case: "LookupCase") -> dict[str, Any]:
    table = case.table
    by, _, backward = kind.partition("_")
    shape = {"rows": table.rows, "dim": table.dim, "pooling": table.pooling, "batch": case.batch}
    return {"by": by, "pass": backward or "forward", **shape, "zipf": round(table.zipf, 3)}


def _all(kind: str, middle: Any, predicted: Any, uniform: Any, floors: Any) -> Row:
    """Return the geometric means of a kind, and whether the error is as small as promised."""
    error, floor = geomean_error(predicted / middle - 1), float(np.mean(floors))
    by, _, backward = kind.partition("_")
    more = {
        "error": error,
        "floor": floor,
        "uniform_error": geomean_error(uniform / middle - 1),
        "met": error <= max(_GOAL, _FLOORS * floor),
    }
    case = {"by": by, "pass": backward or "forward", "cases": len(middle), "all": "geomean"}
    return Row("embedding", case, (median(middle.tolist()),), {}, more)
