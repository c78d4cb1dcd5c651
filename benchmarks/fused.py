"""How much faster fused embeddings are than computing first and exchanging then."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from benchmarks import links
from benchmarks.ddp import difference
from benchmarks.launch import PEERS, POOLERS, require_known, started
from benchmarks.limits import Faster, Limit, judged
from benchmarks.lookups import SHAPES, Lookups, cases
from benchmarks.rows import Options, Row
from weft.local_runs.contest import ContestEntry, ContestOutcome, compete
from weft.local_runs.rank_team import Team

QUESTION = "How much faster are embeddings fused with their all-to-all than one after the other?"
OPERATORS = ("embedding_all_to_all", "embedding", "dlrm_step")
RANKS = (2, 4)
_SAME = 1e-4  # of a loss: exchanged in other blocks, rows of gradients add up in other orders
_OWN = SHAPES[3]  # no figure asks for it
_PEERS = (*PEERS, *POOLERS)


def run(options: Options) -> Iterator[Row]:
    """Measure every operator asked for (--collective names them), with weft and peers in turn.

    With --rate: between two hosts over links of that rate, fused against its parts alone.
    """
    require_known(options.against, _PEERS)
    for rate in options.rates:
        yield from links.rows(_operators(options), rate, options.rounds)
    if options.rates:
        return
    for operator in _operators(options):
        for ranks in _ranks(operator, options):
            against = _against(operator, options.against)
            with started(("dist", *against), ranks, pin=options.pin) as teams:
                for lookups in _cases(operator):
                    # Peers exchange equal parts, so every rank holds as many tables.
                    even = replace(lookups, tables=lookups.tables // ranks * ranks)
                    yield _measured(operator, even, teams, ranks, options)


def count_rows(options: Options) -> int:
    """Count what ``run`` will give."""
    if options.rates:
        asked = [links.job(operator, 1)["asked"] for operator in _operators(options)]
        return len(options.rates) * sum(map(len, asked))
    return sum(
        len(_ranks(operator, options)) * len(list(_cases(operator)))
        for operator in _operators(options)
    )


def _operators(options: Options) -> tuple[str, ...]:
    known = links.OPERATORS if options.rates else OPERATORS
    require_known(options.collectives, known, "operator")
    return options.collectives or known


def _ranks(operator: str, options: Options) -> Sequence[int]:
    return (1,) if operator == "embedding" else options.ranks or RANKS


def _against(operator: str, peers: Sequence[str]) -> tuple[str, ...]:
    """Leave out whom an operator is not for: one process exchanges nothing, MPI trains nothing."""
    able = {"embedding": ("gloo", "fbgemm"), "dlrm_step": ("gloo",)}
    usual = able.get(operator, ("gloo", "mpich"))
    return tuple(peer for peer in peers or usual if peer in able.get(operator, _PEERS))


def _cases(operator: str) -> Iterator[Lookups]:
    """Yield the cases of an operator; one process has the tables of one of two ranks."""
    for lookups in cases():
        if operator == "embedding":
            yield Lookups(**{**asdict(lookups), "tables": lookups.tables // 2})
        elif operator != "dlrm_step" or _shape(lookups) == SHAPES[0]:
            yield lookups


def _measured(
    operator: str, lookups: Lookups, teams: Mapping[str, Team], ranks: int, options: Options
) -> Row:
    case = {"operator": operator, "lookups": asdict(lookups)}
    outcome = compete(
        {name: ContestEntry(team, case) for name, team in teams.items()}, options.rounds
    )
    against = [name for name in teams if name != "dist"]
    shown = {**asdict(lookups), "indices": f"zipf {lookups.zipf}" if lookups.zipf else "uniform"}
    shown.pop("zipf")
    what = {"operator": operator, "ranks": ranks, "link": "local", **shown, "pinned": options.pin}
    row = Row("fused", what, outcome.times["dist"], outcome.peers(against, "dist"))
    row.more.update(foreign=outcome.foreign, versions={n: teams[n].about for n in against})
    limits = _limits(operator, lookups, ranks)
    same = _agree(operator, outcome, against)
    row.more.update(same=same)
    if limits and against:
        row.more.update(judged(row, limits))
        row.more["met"] = row.more["met"] and same
    return row


def _agree(operator: str, outcome: ContestOutcome, against: Sequence[str]) -> bool:
    """Return whether all got the same rows, to the last bit, or the same losses."""
    mine = outcome.answers["dist"]
    if operator == "dlrm_step":
        return all(difference(mine, outcome.answers[name]) <= _SAME for name in against)
    return all(outcome.answers[name] == mine for name in against)


def _limits(operator: str, lookups: Lookups, ranks: int) -> list[Limit]:
    """Return what must be reached, in the cases that have a figure."""
    shape = _shape(lookups)
    if operator == "dlrm_step":
        return [Faster(1.7, ("gloo",))]
    if operator == "embedding":
        wide = 128
        wanted = 1.2 if lookups.dim == wide else 1.3 if lookups.zipf else 1.5
        return [] if shape[1:] == _OWN[1:] else [Faster(wanted, ("gloo", "fbgemm"))]
    if shape[1:] == _OWN[1:]:
        return []
    if ranks == max(RANKS):
        return [Faster(2.0, ("gloo",))]
    return [Faster(3.5 if shape == SHAPES[0] else 2.0, ("gloo",)), Faster(1.8, ("mpich",))]


def _shape(lookups: Lookups) -> tuple[int, ...]:
    return (lookups.tables, lookups.rows, lookups.dim, lookups.batch, lookups.pooling)
