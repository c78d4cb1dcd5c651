"""Cases of fused operators between hosts: computing and sending take about as long."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from benchmarks.hosts import on_hosts
from benchmarks.lookups import Lookups
from benchmarks.namespaces import two_hosts
from benchmarks.rows import Row
from weft.c3.scenarios import percent_of_ideal

MUST = 0.75  # of the gain that overlap could bring: TCP costs core time
_HALVES = ("compute", "communicate")

# Tables, rows, dim, batch; pooling. Over 1 Gbit/s, on a core that pools ten gigabytes a second,
# the exchange takes between twice as long as the lookups and half as long. Written down before
# any of them was measured.
LOOKUPS = tuple(
    Lookups(tables, rows, dim, batch, pooling, 0.0)
    for tables, rows, dim, batch in (
        (16, 200_000, 64, 2048),
        (24, 100_000, 128, 1024),
        (8, 1_000_000, 64, 2048),
    )
    for pooling in (20, 40, 80)
)


@dataclass(frozen=True, slots=True)
class Multiplied:
    """A product of ``rows`` x ``depth`` by ``depth`` x ``width`` on each of two ranks."""

    operator: str
    rows: int
    depth: int
    width: int


# What is sent grows with one side of the product and what is multiplied with all three.
PRODUCTS = (
    *(Multiplied("linear_reduce_scatter", 2048, depth, 1024) for depth in (256, 512, 1024)),
    *(Multiplied("all_gather_linear", 2048, 1024, width) for width in (256, 512, 1024)),
)
OPERATORS = ("embedding_all_to_all", "linear_reduce_scatter", "all_gather_linear")


def job(operator: str, rounds: int) -> dict[str, Any]:
    """Return what the ranks of two hosts are asked for."""
    if operator == OPERATORS[0]:
        asked: list[dict[str, Any]] = [asdict(each) for each in LOOKUPS]
    else:
        asked = [asdict(each) for each in PRODUCTS if each.operator == operator]
    return {"what": "fused", "operator": operator, "asked": asked, "rounds": rounds}


def rows(operators: Sequence[str], rate: float, rounds: int) -> Iterator[Row]:
    """Measure operators with a rank on each of two hosts, and their parts alone."""
    with two_hosts(rate) as hosts:
        for operator in operators:
            for found in on_hosts(hosts, 1, job(operator, rounds)):
                yield row_of(operator, f"{8 * rate / 1e9:g} Gbit/s", found)


def row_of(operator: str, link: str, found: Mapping[str, Any]) -> Row:
    """Return how much of what overlap could gain was gained, and whether that is enough."""
    times = found["times"]
    shares = [_share(each) for each in times]
    attainable = median(_share({**each, "fused": _soonest(each)}) for each in times)
    removed = [1 - each["fused"] / (each["compute"] + each["communicate"]) for each in times]
    parts = {f"{name}_seconds": median(each[name] for each in times) for name in _HALVES}
    more = {
        **parts,
        "core_seconds": median(each["core"] for each in times),
        "share_of_ideal": median(shares),
        "attainable": attainable,
        "share_of_sum_removed": median(removed),
        "within": max(parts.values()) / min(parts.values()),
        "same": found["same"],
        "must": f"{MUST:g} of the ideal gain",
        "reached": f"{median(shares):.2f} where {attainable:.2f} is attainable",
        "met": bool(median(shares) >= MUST and found["same"]),
    }
    case = {key: value for key, value in found["case"].items() if key not in ("zipf", "operator")}
    if operator == OPERATORS[0]:
        case["indices"] = "uniform"
    what = {"operator": operator, "ranks": 2, "hosts": 2, "link": link, **case}
    return Row("fused", what, tuple(each["fused"] for each in times), {}, more)


def _share(times: Mapping[str, float]) -> float:
    """Return the share of the possible gain in speed that was realised."""
    serial = times["compute"] + times["communicate"]
    return percent_of_ideal(serial, max(times[name] for name in _HALVES), times["fused"]) / 100


def _soonest(times: Mapping[str, float]) -> float:
    """Return how long both take at once where sending costs core time, which nothing can hide."""
    return max(times["communicate"], times["compute"] + times["core"])
