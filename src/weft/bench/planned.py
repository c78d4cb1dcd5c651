"""Training by plan against torch with Gloo: the gain that was predicted beside the measured one."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from weft.bench.contest import Entry, Outcome, compete
from weft.bench.ddp import difference
from weft.bench.drawn_models import RANKS, Dlrm, Drawn, Transformer
from weft.bench.far_teams import started_on
from weft.bench.namespaces import two_hosts
from weft.bench.rows import Options, Peer, Row
from weft.bench.team import Team
from weft.bench.teams import require_known, started
from weft.calibration.steady_memory import steady_memory
from weft.hardware import Platform, is_calibrated, platform
from weft.hardware.network import Level
from weft.planner.plan import Plan
from weft.planner.planning import plan

if TYPE_CHECKING:
    from weft.bench.torch_seen import Seen
    from weft.calibration.torch_op_calls import OpCall
    from weft.calibration.torch_op_times import OpTime
    from weft.calibration.torch_timed_steps import CapturedStep
    from weft.workload import Workload

QUESTION = "How much faster is a step by plan than with torch and Gloo, and was that foretold?"
MODELS: dict[str, Drawn] = {
    "dlrm": Dlrm(((200_000, 20, 1.05),) * 16, 64, (64, 64), (64, 1), 2048),
    "transformer": Transformer("gpt2", 256, 4, 4, 1024, 2048, 64, 8),
}
LINKS = {"local": 0.0, "1gbit": 1e9 / 8}  # bytes a second between hosts; 0: one host
REPETITIONS = 5  # each in fresh processes: a step repeats worse between processes than inside one
STEPS = 2  # of a measurement: the speed of a core changes within seconds
_MORE = 2  # times the rounds that other benchmarks have
_SAME = 1e-3  # of a loss: rows of gradients add up in other orders
_POINTS = 0.10  # of a step: how far a predicted gain may be off, or 1.5 times the floor
_FLOORS = 1.5
_LEAST = 0.98  # times as fast as the default, whatever is planned
_WANTED = {("dlrm", "local"): 1.5, ("dlrm", "1gbit"): 1.2}
# A message between processes of one machine by sockets: two wake-ups and two calls.
_LATENCY = 250e-6
_EXCHANGED, _LOOKS = 4 << 20, 5  # bytes of an exchange by which a link is looked at, and how often

Teams = Callable[[], AbstractContextManager[Mapping[str, Team]]]


def run(options: Options) -> Iterator[Row]:
    """Measure every model on one host and between two; --collective names models, --rate links."""
    chosen = _models(options)
    for link, rate in _links(options).items():
        with _places(rate) as teams:
            on = machine(rate, _achieved(teams) if rate else 0.0)
            jobs = {name: Planned.of(model, on) for name, model in chosen.items()}
            seen = _seen(jobs.values()) if on.torch else None
            found = _repeated(jobs, teams, seen, options.rounds)
            for name, job in jobs.items():
                yield _row(name, link, job.again(seen) if seen else job, found[name])


def count_rows(options: Options) -> int:
    """Count what ``run`` will give."""
    return len(_models(options)) * len(_links(options))


@dataclass(frozen=True)
class Planned:
    """A model, the plan for its step, and the platform it was made for."""

    model: Drawn
    step: "CapturedStep"
    workload: "Workload"
    plan: Plan
    on: Platform

    @classmethod
    def of(cls, model: Drawn, on: Platform, *, exact: bool = True) -> "Planned":
        """Capture a step and plan it.

        ``exact``: ops have the seconds that they take here by themselves, where this machine was
        calibrated; otherwise laws price them.
        """
        from weft.bench.torch_planned import captured
        from weft.calibration.torch_op_cache import stored_times

        step = captured(model)
        return cls._timed(model, step, on, stored_times(step.unique) if exact and on.torch else {})

    def again(self, seen: "Seen") -> "Planned":
        """Plan the same step by what its ops and lookups took at other times."""
        return self._timed(self.model, self.step, seen.corrected_lookups(self.on), seen.times())

    @classmethod
    def _timed(
        cls, model: Drawn, step: "CapturedStep", on: Platform, times: "Mapping[OpCall, OpTime]"
    ) -> "Planned":
        workload = step.timed(times, on, "gloo") if on.torch else step.workload
        return cls(model, step, workload, plan(workload, on), on)

    def case(self, *, by_plan: bool, trace: str = "") -> dict[str, Any]:
        """Say what a rank does."""
        text = self.plan.to_json().decode() if by_plan else None
        asked = {"model": asdict(self.model), "plan": text, "on": self.on.name, "trace": trace}
        return {"planned": {**asked, "steps": STEPS}}


def machine(rate: float, achieved: float = 0.0) -> Platform:
    """Give this machine, or two hosts like it with a rank each and a link of that rate.

    ``achieved`` is what an exchange gets through the link, where that was looked at.
    """
    here = platform("here" if is_calibrated() else "cpu", num_ranks=RANKS)
    if not rate:
        return here
    inside = here.levels[0]
    link = Level("switch", RANKS, achieved or rate, _LATENCY)
    return replace(
        here,
        name=f"{here.name}@{8 * rate / 1e9:g}gbit",
        levels=(inside.cut(1), link),
        node_levels=1,
    )


def _achieved(teams: Teams) -> float:
    """Give the bytes a second that the faster library exchanges: both ways at once, by TCP.

    Acknowledgements wait behind what goes the other way, so it is far less than the link's rate.
    """
    asked = {"kind": "all_to_all", "nbytes": _EXCHANGED}
    with teams() as contestants:
        found = compete({name: Entry(team, asked) for name, team in contestants.items()}, _LOOKS)
    seconds = min(median(each) for each in found.times.values())
    return _EXCHANGED / RANKS / (seconds - _LATENCY)


def _models(options: Options) -> dict[str, Drawn]:
    require_known(options.collectives, MODELS, "model")
    return {name: MODELS[name] for name in options.collectives or MODELS}


def _links(options: Options) -> dict[str, float]:
    if not options.rates:
        return LINKS
    return {f"{8 * rate / 1e9:g}gbit" if rate else "local": rate for rate in options.rates}


@contextmanager
def _places(rate: float) -> Iterator[Teams]:
    """Give what starts contestants on this host, or on two that a link of that rate joins."""
    names = ("dist", "gloo")
    with steady_memory():  # in which single ops were timed
        if not rate:
            yield partial(started, names, RANKS, pin=True)
            return
        with two_hosts(rate) as hosts:
            yield partial(started_on, hosts, names)


def _seen(jobs: Iterable[Planned]) -> "Seen":
    from weft.bench.torch_seen import Seen

    return Seen([(job.model, job.step) for job in jobs])


def _repeated(
    jobs: Mapping[str, Planned], teams: Teams, seen: "Seen | None", rounds: int
) -> dict[str, list[Outcome]]:
    found: dict[str, list[Outcome]] = {name: [] for name in jobs}
    for _ in range(REPETITIONS):
        if seen is not None:
            seen.look()
        with teams() as contestants:
            for name, job in jobs.items():
                entries = {
                    "dist": Entry(contestants["dist"], job.case(by_plan=True)),
                    "gloo": Entry(contestants["gloo"], job.case(by_plan=False)),
                }
                found[name].append(compete(entries, _MORE * rounds))
    return found


def _row(name: str, link: str, job: Planned, outcomes: list[Outcome]) -> Row:
    ratios = [outcome.beside("gloo", "dist").ratio for outcome in outcomes]
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
    return Row("planned", case, times["dist"], {"gloo": Peer(median(times["gloo"]), ratio)}, more)


def _apart(outcome: Outcome) -> float:
    """Say how far losses by plan and by default are apart."""
    mine, theirs = ([a["losses"] for a in outcome.answers[who]] for who in ("dist", "gloo"))
    return difference(mine, theirs)
