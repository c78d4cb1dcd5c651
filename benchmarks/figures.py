"""Whether weft's collectives are as fast as they must be, case by case."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.collective_case import KINDS
from benchmarks.collectives import kinds_of, measured, row_of, sized, team_names
from benchmarks.environments import MPIS
from benchmarks.launch import PEERS, require_known, started
from benchmarks.limits import AtMost, Faster, Limit, judged
from benchmarks.rows import Options, Row

QUESTION = "Which figures do weft's collectives reach on this machine?"
KiB, MiB = 1 << 10, 1 << 20
_SMALL, _LARGE = (1 * KiB, 8 * KiB), (16 * MiB, 64 * MiB)


@dataclass(frozen=True, slots=True)
class Figure:
    """What a path of weft's must reach; ``sizes`` are each rank's input."""

    name: str
    path: str
    ranks: int
    kinds: tuple[str, ...]
    sizes: tuple[int, ...]
    limits: tuple[Limit, ...]


def _prepared(kinds: tuple[str, ...], sizes: tuple[int, ...], mpich: float = 1.7) -> Figure:
    limits = AtMost(2e-6), Faster(1.7, ("openmpi",)), Faster(mpich, ("mpich",))
    return Figure("small, prepared", "direct", 2, kinds, sizes, limits)


def _registered(kind: str, ranks: int, size: int, times: float) -> Figure:
    return Figure("large, registered", "direct", ranks, (kind,), (size,), (Faster(times, MPIS),))


def _reductions(ranks: int, sizes: tuple[int, ...], limit: Limit) -> Figure:
    return Figure("reductions", "direct", ranks, ("all_reduce", "reduce_scatter"), sizes, (limit,))


def _crowded(path: str) -> Figure:
    limits = Faster(20, ("gloo",)), Faster(1, ("openmpi",)), AtMost(1e-3)
    return Figure("more ranks than cores", path, 4, KINDS, (*_SMALL, 64 * KiB), limits)


def _ordinary(ranks: int) -> Iterator[Figure]:
    best = Faster(0.9, MPIS)
    rest = tuple(kind for kind in KINDS if kind != "all_gather")
    yield Figure("large, ordinary memory", "ordinary", ranks, rest, _LARGE, (best,))
    both = best, Faster(2.5, ("gloo",))
    yield Figure("large, ordinary memory", "ordinary", ranks, ("all_gather",), _LARGE, both)


FIGURES = (
    Figure(
        "small, by torch.distributed",
        "dist",
        2,
        ("broadcast", "all_gather", "all_to_all"),
        _SMALL,
        (AtMost(10e-6), Faster(15, ("gloo",))),
    ),
    _prepared(tuple(kind for kind in KINDS if kind != "broadcast"), _SMALL),
    _prepared(("broadcast",), (8 * KiB,)),
    _prepared(("broadcast",), (1 * KiB,), mpich=1.0),  # MPICH's root does not wait there
    _crowded("dist"),
    _crowded("direct"),
    _registered("all_gather", 2, 16 * MiB, 1.5),
    _registered("all_gather", 2, 64 * MiB, 1.0),
    _registered("all_gather", 4, 16 * MiB, 1.3),
    _registered("all_gather", 4, 64 * MiB, 2.0),
    _registered("all_to_all", 2, 16 * MiB, 1.5),
    _registered("all_to_all", 2, 64 * MiB, 1.0),
    _registered("all_to_all", 4, 16 * MiB, 1.5),
    _registered("all_to_all", 4, 64 * MiB, 2.0),
    *_ordinary(2),
    *_ordinary(4),
    _reductions(2, (1 * MiB,), Faster(1 / 1.2, MPIS)),
    _reductions(4, (1 * MiB,), Faster(1.2, MPIS)),
    _reductions(2, _LARGE, Faster(1.2, PEERS)),
    _reductions(4, _LARGE, Faster(1.2, PEERS)),
)

_KEPT = ("wrong", "foreign", "least", "versions")
Case = tuple[int, int, str]  # ranks, size, collective


def run(options: Options) -> Iterator[Row]:
    """Measure each case once, by the paths and with the peers that its figures ask for."""
    options = replace(options, against=options.against or PEERS)
    require_known(options.against)
    cases = _cases(options)
    for ranks in dict.fromkeys(ranks for ranks, _, _ in cases):
        here = {case: figures for case, figures in cases.items() if case[0] == ranks}
        paths = [figure.path for figures in here.values() for figure in figures]
        with started(team_names(paths, options.against), ranks, pin=options.pin) as teams:
            for (_, size, kind), figures in here.items():
                exchange = sized(kind, size, ranks, per_rank=True)
                each = list(dict.fromkeys(figure.path for figure in figures))
                outcome = measured(exchange, teams, each, options)
                for figure in figures:
                    row = row_of("figures", exchange, figure.path, outcome, teams, options)
                    yield _judged(row, figure, size)


def count_rows(options: Options) -> int:
    """Count what ``run`` will give."""
    return sum(map(len, _cases(options).values()))


def _cases(options: Options) -> dict[Case, list[Figure]]:
    """Return the cases that the options leave, in the order of ranks, sizes and collectives."""
    found: dict[Case, list[Figure]] = {}
    for figure in FIGURES:
        for size in figure.sizes:
            for kind in figure.kinds:
                found.setdefault((figure.ranks, size, kind), []).append(figure)
    kinds = kinds_of(options)
    return {
        (ranks, size, kind): found[ranks, size, kind]
        for ranks, size, kind in sorted(found, key=lambda case: (*case[:2], KINDS.index(case[2])))
        if kind in kinds
        and (not options.ranks or ranks in options.ranks)
        and (not options.sizes or size in options.sizes)
    }


def _judged(row: Row, figure: Figure, size: int) -> Row:
    keys = ("collective", "ranks", "nbytes", "path", "pinned")
    case = {"figure": figure.name, **{key: row.case[key] for key in keys}, "input_bytes": size}
    verdict = judged(row, figure.limits)
    if row.more["wrong"]:
        verdict["met"] = False
    return replace(row, case=case, more=verdict | {key: row.more[key] for key in _KEPT})
