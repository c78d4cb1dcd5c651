"""How much of a collective hides behind a product of matrices on this machine."""

from collections.abc import Iterator
from typing import Any

from weft.bench.overlap import KINDS, RATIOS, Outcome, measure
from weft.bench.rows import Options, Row
from weft.c3.ideal import class_of

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
        "class": class_of(best.compute, best.comm),
    }
