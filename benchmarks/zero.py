"""Training with a sharded optimizer over shaped links: weights broadcast encoded or not."""

from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

from benchmarks.namespaces import hosts_on_switch
from benchmarks.remote_launch import started_on
from benchmarks.rows import Options, Row
from weft.local_runs.contest import ContestEntry, PeerTiming, compete

QUESTION = "How much shorter is a ZeRO step when weights travel encoded, and does it learn alike?"
HOSTS = 4
RATE = 1e9 / 8
STEPS = 160
CODECS = ("none", "bf16", "int8")
_WIDTH, _LAYERS = 256, 4
_LAST = 20  # steps whose mean loss is compared
_BUDGET = 24.0  # seconds for all steps of one codec: with starting, the bench ends in two minutes


def run(options: Options) -> Iterator[Row]:
    """Train the same model by every codec, step by step in turn."""
    codecs = ("none", *(name for name in options.algorithms or CODECS if name != "none"))
    for rate in options.rates or (RATE,):
        with hosts_on_switch(rate, HOSTS) as hosts, started_on(hosts, ("dist",)) as teams:
            cases = {name: {"codec": name, "width": _WIDTH, "layers": _LAYERS} for name in codecs}
            entries = {name: ContestEntry(teams["dist"], case) for name, case in cases.items()}
            steps = options.rounds if options.rounds > _LAST else STEPS
            outcome = compete(entries, steps, budget=_BUDGET)
            plain = outcome.answers["none"][-HOSTS:]
            for name in codecs:
                held = outcome.answers[name][-HOSTS:]
                case = {"model": "transformer", "codec": name, "ranks": HOSTS, "steps": steps}
                case["rate"] = f"{8 * rate / 1e9:g}gbit"
                compared: dict[str, PeerTiming] = {"none": outcome.compare("none", name)}
                figures = {**_compared(held, plain), "foreign": outcome.foreign}
                figures["share"] = _share(held, outcome.times[name])
                yield Row("zero", case, outcome.times[name], compared, figures)


def _compared(held: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Compare the mean loss of the last steps that both had, over all ranks."""
    mine, theirs = _curve(held), _curve(plain)
    common = min(len(mine), len(theirs))
    last, base = (fmean(curve[common - _LAST : common]) for curve in (mine, theirs))
    return {
        "loss": last,
        "loss_difference": last / base - 1,
        "first_loss": mine[0],
        "curve": [round(value, 4) for value in mine[:: max(1, len(mine) // 40)]],
    }


def _curve(held: Sequence[dict[str, Any]]) -> list[float]:
    return [fmean(step) for step in zip(*(each["losses"] for each in held), strict=True)]


def _share(held: Sequence[dict[str, Any]], times: Sequence[float]) -> float:
    """Return the share of a step in which weights are broadcast."""
    return float(max(median(each["shared"]) for each in held) / median(times))
