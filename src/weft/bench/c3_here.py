"""How much of a collective hides behind a product of matrices on this machine."""

from collections.abc import Iterator
from typing import Any

from weft.bench.overlap import KINDS, RATIOS, Outcome, measure
from weft.bench.rows import Options, Row

QUESTION = "How much of a collective hides behind a product of matrices here, by strategy?"
SIZE = 8 << 20


def run(options: Options) -> Iterator[Row]:
    """Measure every collective, ratio and strategy."""
    for ranks in options.ranks or (2,):
        for nbytes in options.sizes or (SIZE,):
            for kind in KINDS:
                for outcome in measure(kind, nbytes, RATIOS, ranks, options.rounds):
                    yield row_of(outcome, ranks)


def row_of(outcome: Outcome, ranks: int) -> Row:
    """Give what was measured of one case under one strategy as a row of results."""
    case = outcome.case
    key = {
        "collective": case.kind,
        "nbytes": case.nbytes,
        "ranks": ranks,
        "ratio": case.ratio,
        "strategy": outcome.strategy,
    }
    both = tuple(each.both for each in outcome.rounds)
    return Row("c3_here", key, both, more=figures(outcome))


def figures(outcome: Outcome) -> dict[str, Any]:
    """Give the figures of a c3 result besides its time, percent from 0 to 100."""
    best = outcome.best
    return {
        "t_compute": best.compute,
        "t_comm": best.comm,
        "serial": best.serial,
        "ideal": outcome.ideal,
        "speedup": (best.compute + best.comm) / best.both,
        "percent_of_ideal": outcome.percent,
        "bound": outcome.bound,
        "gemm_beside_copies": outcome.slowdown,
        "best": best.both,
        "calls": outcome.num_calls,
        "products": outcome.num_products,
        "class": _class(best.compute, best.comm),
    }


def _class(compute: float, comm: float) -> str:
    """Say which of the two is longer, if one is by more than a quarter."""
    if max(compute, comm) < 1.25 * min(compute, comm):
        return "balanced"
    return "G-long" if compute > comm else "C-long"
