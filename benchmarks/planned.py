"""Training by plan against torch with Gloo: the gain that was predicted and the measured one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING

from benchmarks.ddp import difference
from benchmarks.launch import require_known, started
from benchmarks.namespaces import two_hosts
from benchmarks.remote_launch import started_on
from benchmarks.rows import Options, Row
from weft.calibration.steady_memory import steady_memory
from weft.errors import UsageError
from weft.hardware import is_calibrated
from weft.local_runs.contest import ContestEntry, ContestOutcome, PeerTiming, compete
from weft.local_runs.planned_model import SOCKET_LATENCY, STEPS, Planned, machine
from weft.local_runs.rank_team import Team
from weft.local_runs.synthetic_models import (
    RANKS,
    SyntheticDlrm,
    SyntheticModel,
    SyntheticTransformer,
)

if TYPE_CHECKING:
    from benchmarks.torch_op_timings import OpTimings

QUESTION = "How much faster is a step by plan than with torch and Gloo, and was that predicted?"
MODELS: dict[str, SyntheticModel] = {
    "dlrm": SyntheticDlrm(((200_000, 20, 1.05),) * 16, 64, (64, 64), (64, 1), 2048),
    "transformer": SyntheticTransformer("gpt2", 256, 4, 4, 1024, 2048, 64, 8),
}
LINKS = {"local": 0.0, "1gbit": 1e9 / 8}  # bytes a second between hosts; 0: one host
REPETITIONS = 5  # each in fresh processes: a step repeats worse between processes than inside one
_MORE = 2  # times the rounds that other benchmarks have
_SAME = 1e-3  # of a loss: rows of gradients add up in other orders
_POINTS = 0.10  # of a step: how far a predicted gain may be off, or 1.5 times the floor
_FLOORS = 1.5
_LEAST = 0.98  # times as fast as the default, whatever is planned
_WANTED = {("dlrm", "local"): 1.5, ("dlrm", "1gbit"): 1.2}
_EXCHANGED, _LOOKS = 4 << 20, 5  # bytes of an exchange by which a link is looked at, and how often

Teams = Callable[[], AbstractContextManager[Mapping[str, Team]]]


def run(options: Options) -> Iterator[Row]:
    """Measure every model on one host and between two; --collective names models, --rate links."""
    chosen = _models(options)
    if not is_calibrated():
        raise UsageError(
            "planned compares a plan for this machine, which was not calibrated.",
            "Run weft calibrate first; make bench does.",
        )
    for link, rate in _links(options).items():
        with _places(rate) as teams:
            on = machine(rate, _achieved(teams) if rate else 0.0)
            jobs = {name: Planned.of(model, on) for name, model in chosen.items()}
            timings = _op_timings(jobs.values()) if on.torch else None
            found = _repeated(jobs, teams, timings, options.rounds)
            for name, job in jobs.items():
                yield _row(name, link, _sharpened(job, timings) if timings else job, found[name])


def count_rows(options: Options) -> int:
    """Count what ``run`` will give."""
    return len(_models(options)) * len(_links(options))


def _sharpened(job: Planned, timings: "OpTimings") -> Planned:
    """Plan the same step by the durations of its ops and lookups at other times."""
    return Planned.timed(job.model, job.step, timings.corrected_lookups(job.on), timings.times())


def _achieved(teams: Teams) -> float:
    """Return the bytes a second that the faster library exchanges: both ways at once, by TCP.

    Acknowledgements wait behind what goes the other way, so it is far less than the link's rate.
    """
    asked = {"kind": "all_to_all", "nbytes": _EXCHANGED}
    with teams() as contestants:
        found = compete(
            {name: ContestEntry(team, asked) for name, team in contestants.items()}, _LOOKS
        )
    seconds = min(median(each) for each in found.times.values())
    return _EXCHANGED / RANKS / (seconds - SOCKET_LATENCY)


def _models(options: Options) -> dict[str, SyntheticModel]:
    require_known(options.collectives, MODELS, "model")
    return {name: MODELS[name] for name in options.collectives or MODELS}


def _links(options: Options) -> dict[str, float]:
    if not options.rates:
        return LINKS
    return {f"{8 * rate / 1e9:g}gbit" if rate else "local": rate for rate in options.rates}


@contextmanager
def _places(rate: float) -> Iterator[Teams]:
    """Yield what starts contestants on this host, or on two that a link of that rate joins."""
    names = ("dist", "gloo")
    with steady_memory():  # in which single ops were timed
        if not rate:
            yield partial(started, names, RANKS, pin=True)
            return
        with two_hosts(rate) as hosts:
            yield partial(started_on, hosts, names)


def _op_timings(jobs: Iterable[Planned]) -> "OpTimings":
    from benchmarks.torch_op_timings import OpTimings

    return OpTimings([(job.model, job.step) for job in jobs])


def _repeated(
    jobs: Mapping[str, Planned], teams: Teams, timings: "OpTimings | None", rounds: int
) -> dict[str, list[ContestOutcome]]:
    found: dict[str, list[ContestOutcome]] = {name: [] for name in jobs}
    for _ in range(REPETITIONS):
        if timings is not None:
            timings.measure()
        with teams() as contestants:
            for name, job in jobs.items():
                entries = {
                    "dist": ContestEntry(contestants["dist"], job.case(by_plan=True)),
                    "gloo": ContestEntry(contestants["gloo"], job.case(by_plan=False)),
                }
                found[name].append(compete(entries, _MORE * rounds))
    return found


def _row(name: str, link: str, job: Planned, outcomes: list[ContestOutcome]) -> Row:
    ratios = [outcome.compare("gloo", "dist").ratio for outcome in outcomes]
    times = {
        who: tuple(t / STEPS for each in outcomes for t in each.times[who])
        for who in ("dist", "gloo")
    }
    ratio = median(ratios)
    gain, predicted = 1 - 1 / ratio, job.plan.gain
    floor = fmean(abs((1 - 1 / each) - gain) for each in ratios)
    answers = [answer for each in outcomes for answer in each.answers["dist"]]
    apart = max(_apart(each) for each in outcomes)
    wanted = _WANTED.get((name, link), _LEAST)
    off = abs(predicted - gain)
    case = {"model": name, "link": link, "ranks": RANKS, "by": "plan"}
    more = {
        "predicted": job.plan.planned,
        "predicted_default": job.plan.baseline,
        "predicted_gain": predicted,
        "gain": gain,
        "floor": floor,
        "ratios": ratios,
        "loss_difference": apart,
        "paths": sorted({f"{r['collective']} {r['path']}" for a in answers for r in a["rows"]}),
        "foreign": max(each.foreign for each in outcomes),
        "must": f"{wanted:g}x gloo; gain within max(10 points, 1.5 floor)",
        "reached": f"{ratio:.2f}x gloo; gain {gain:.1%}, predicted {predicted:.1%}",
        "met": ratio >= wanted and off <= max(_POINTS, _FLOORS * floor) and apart <= _SAME,
    }
    return Row(
        "planned", case, times["dist"], {"gloo": PeerTiming(median(times["gloo"]), ratio)}, more
    )


def _apart(outcome: ContestOutcome) -> float:
    """Return how far losses by plan and by default are apart."""
    mine, theirs = ([a["losses"] for a in outcome.answers[who]] for who in ("dist", "gloo"))
    return difference(mine, theirs)
