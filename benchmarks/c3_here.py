"""How much of a collective hides behind a product of matrices on this machine."""

from collections.abc import Iterator

from benchmarks.rows import Options, Row
from weft.local_runs.overlap_measurement import (
    KINDS,
    RATIOS,
    SIZE,
    OverlapOutcome,
    figures,
    measure,
)

QUESTION = "How much of a collective hides behind a product of matrices here, by strategy?"


def run(options: Options) -> Iterator[Row]:
    """Measure every collective, ratio and strategy."""
    for ranks in options.ranks or (2,):
        for nbytes in options.sizes or (SIZE,):
            for kind in KINDS:
                for outcome in measure(kind, nbytes, RATIOS, ranks, options.rounds):
                    yield row_of(outcome, ranks)


def row_of(outcome: OverlapOutcome, ranks: int) -> Row:
    """Return what was measured of one case under one strategy as a row of results."""
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
