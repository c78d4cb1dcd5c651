"""How long collectives take on this machine, by weft and by its peers."""

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.collective_case import DTYPES, KINDS, CollectiveCase
from benchmarks.launch import COLLECTIVE_PEERS, has_collective, require_known, started
from benchmarks.rows import Options, Row
from weft.cost.bus import bus_factor
from weft.local_runs.contest import ContestEntry, ContestOutcome, compete
from weft.local_runs.rank_team import Team

QUESTION = "How long do collectives take on this machine, by weft and by its peers?"
PATHS = ("dist", "direct", "ordinary")
RANKS = (2, 4)
SIZES = (1 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20)


def run(options: Options) -> Iterator[Row]:
    """Measure every collective, size and number of ranks; paths and peers in turn."""
    require_known(options.against, COLLECTIVE_PEERS)
    require_known(options.dtypes, DTYPES, "dtype")
    for ranks in options.ranks or RANKS:
        with started(team_names(PATHS, options.against), ranks, pin=options.pin) as teams:
            for exchange in exchanges(options, ranks):
                outcome = measured(exchange, teams, PATHS, options)
                for path in PATHS:
                    yield row_of("collectives", exchange, path, outcome, teams, options)


def count_rows(options: Options) -> int:
    """Count what ``run`` will give."""
    cases = len(options.ranks or RANKS) * len(options.sizes or SIZES) * len(kinds_of(options))
    return cases * len(options.dtypes or ("float32",)) * len(PATHS)


def exchanges(options: Options, ranks: int) -> Iterator[CollectiveCase]:
    """List the cases of the options, size by size."""
    for size in options.sizes or SIZES:
        for kind in kinds_of(options):
            for dtype in options.dtypes or ("float32",):
                yield sized(kind, size, ranks, per_rank=options.per_rank, dtype=dtype)


def sized(
    kind: str, size: int, ranks: int, *, per_rank: bool, dtype: str = "float32"
) -> CollectiveCase:
    """Return a case of about that size, in elements that the ranks can share.

    ``per_rank``: the size is each rank's input, which nccl-tests counts otherwise only for an
    all_gather, whose size is what comes out.
    """
    nbytes = size * ranks if per_rank and kind == "all_gather" else size
    unit = DTYPES[dtype] * ranks
    return CollectiveCase(kind, max(1, -(-nbytes // unit)) * unit, ranks, dtype)


def kinds_of(options: Options) -> tuple[str, ...]:
    """Return the collectives asked for."""
    require_known(options.collectives, KINDS, "collective")
    return options.collectives or KINDS


def team_names(paths: Sequence[str], against: Sequence[str]) -> list[str]:
    """Name the contestants that the paths and peers need; two paths share one."""
    return list(dict.fromkeys([*map(team_of, paths), *against]))


def team_of(entry: str) -> str:
    """Name the contestant that carries out a path or a peer's work."""
    return "weft" if entry in ("direct", "ordinary") else entry


def measured(
    exchange: CollectiveCase, teams: Mapping[str, Team], paths: Sequence[str], options: Options
) -> ContestOutcome:
    """Measure the same exchange by weft's paths and by the peers."""
    case = {"kind": exchange.kind, "nbytes": exchange.nbytes, "dtype": exchange.dtype}
    entries = {
        name: ContestEntry(teams[team_of(name)], case | {"path": name})
        for name in (*paths, *peers_of(exchange, options))
    }
    return compete(entries, options.rounds)


def peers_of(exchange: CollectiveCase, options: Options) -> list[str]:
    """Return the peers asked for that have the collective."""
    kind, dtype = exchange.kind, exchange.dtype
    return [name for name in options.against if has_collective(name, kind, dtype)]


def row_of(
    bench: str,
    exchange: CollectiveCase,
    path: str,
    outcome: ContestOutcome,
    teams: Mapping[str, Team],
    options: Options,
) -> Row:
    """Write down one path of weft's with its peers."""
    case = {
        "collective": exchange.kind,
        "algorithm": "auto",
        "ranks": exchange.num_ranks,
        "nbytes": exchange.nbytes,
        "path": path,
        "dtype": exchange.dtype,
        "pinned": options.pin,
    }
    against = peers_of(exchange, options)
    row = Row(bench, case, outcome.times[path], outcome.peers(against, path))
    algbw = exchange.nbytes / row.seconds
    row.more.update(
        count=exchange.count,
        algbw=algbw,
        busbw=algbw * bus_factor(exchange.kind, exchange.num_ranks),
        wrong=outcome.wrong(path),
        wrong_peers={name: outcome.wrong(name) for name in against},
        foreign=outcome.foreign,
        least={name: min(outcome.times[name]) for name in (path, *against)},
        versions={name: teams[name].about for name in options.against},
    )
    return row
