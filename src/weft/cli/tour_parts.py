"""The parts of ``weft tour``: each prints its results and keeps what the next ones need."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from weft.calibration.machine_calibration import save
from weft.calibration.noise import foreign_share
from weft.cli.checkup import examine
from weft.cli.outputs import track, working
from weft.cost.nccl import library_price
from weft.errors import RunError
from weft.hardware import here_path
from weft.local_runs.contest import ContestEntry, compete
from weft.local_runs.planned_model import STEPS, Planned, machine
from weft.local_runs.rank_team import started_torch_teams
from weft.local_runs.synthetic_models import (
    RANKS,
    SyntheticDlrm,
    SyntheticModel,
    SyntheticTransformer,
)
from weft.planner.predict import predict
from weft.planner.prices import Prices
from weft.report.text import Column, print_table
from weft.report.tour_report import COMPARED, Compared, PredictedModel, tour_page
from weft.trace import write_perfetto
from weft.units import format_rate, format_size, format_time

if TYPE_CHECKING:
    from pathlib import Path

    from weft.hardware import Platform
    from weft.local_runs.contest import ContestOutcome

MODELS: dict[str, SyntheticModel] = {
    "dlrm": SyntheticDlrm(((40_000, 16, 1.05),) * 16, 64, (64, 64), (64, 1), 1024),
    "transformer": SyntheticTransformer("gpt2", 192, 2, 3, 768, 1024, 64, 8),
}
_ROUNDS = 6
_BUDGET = 4.0  # seconds of rounds per variant of each model
_NOISY = 0.1  # fraction of the cores: other processes that use more disturb measurements
# Seconds after which the tour hurries: ops are priced by cost models instead of timed one by one,
# and there are fewer rounds.
_LONG = 60.0
_SHOWN_BYTES = 1 << 20
_SHOWN = ("native core", "torch", "cores", "GPUs")


@dataclass
class Tour:
    """The state shared by the parts; a part whose input is missing says what it needs."""

    folder: Path
    again: bool = False
    foreign: float = 0.0
    began: float = field(default_factory=time.monotonic)
    written: list[Path] = field(default_factory=list)
    planned: dict[str, Planned] = field(default_factory=dict)
    predicted_models: list[PredictedModel] = field(default_factory=list)
    compared: list[Compared] = field(default_factory=list)

    def examine(self) -> None:
        """Print what is available, and whether the machine is idle."""
        found = {each.name: each for each in examine(RANKS)}
        for name in _SHOWN:
            print(f"  {name}: {found[name].detail or found[name].state}")
        self._look_around()

    def calibrate(self) -> None:
        """Measure this machine unless that was done; the result is the platform ``here``."""
        if not self.again and _is_current():
            print(f"  calibrated before: {here_path()} (--again measures again)")
            return
        from weft.calibration.torch_calibration import measured_here

        begin = time.monotonic()
        made = measured_here(lambda steps: track(steps, "measuring this machine"), all_cores=False)
        where = save(made)
        shared = made.require_device().shared
        assert shared is not None
        print(f"  memory of another process is read at {format_rate(shared.far_rate)}")
        for library in made.libraries:
            took = library_price(made.resized(RANKS), "all_reduce", _SHOWN_BYTES, name=library.name)
            size = format_size(_SHOWN_BYTES)
            print(f"  an all_reduce of {size} takes {format_time(took.seconds)} by {library.name}")
        if made.noise is not None and made.noise.is_noisy:
            print("  the machine was busy: predictions will be less accurate than on an idle one")
        print(f"  wrote {where} in {time.monotonic() - begin:.0f} s: the platform 'here'")

    def plan(self) -> None:
        """Capture a step of each model on fake tensors, predict it and plan it."""
        on = self.as_busy(machine(0.0))
        for name, model in MODELS.items():
            with working(f"planning {name}"):
                self.planned[name] = made = Planned.of(model, on, exact=self._has_time)
            self._write_prediction(name, made)
        rows = [{"model": name, **_planned_row(each)} for name, each in self.planned.items()]
        print_table(_PLANNED, rows)
        for name, made in self.planned.items():
            print(f"\n  {name}: what the plan does, and why")
            for choice in made.plan.choices:
                print(f"    {choice.pair}: {choice.strategy}; {choice.why}")

    def run(self) -> None:
        """Train both models with and without their plans, and compare the gains."""
        if not self.planned:
            raise RunError("no plan to run.", "See the errors above.")
        with working("starting two ranks with Gloo and two with weft"):
            teams = started_torch_teams(RANKS)
        with teams as contestants:
            for name, made in track(list(self.planned.items()), "training both ways"):
                traces = {run: self.folder / f"run-{name}-{run}.json" for run in ("gloo", "plan")}
                entries = {
                    run: ContestEntry(
                        contestants["gloo" if run == "gloo" else "dist"],
                        made.case(by_plan=run == "plan", trace=str(path.resolve())),
                    )
                    for run, path in traces.items()
                }
                budget = _BUDGET if self._has_time else _BUDGET / 4
                outcome = compete(entries, _ROUNDS, budget=budget)
                self.compared.append(_compared(name, made, outcome))
                self.written += traces.values()
        print_table(COMPARED, [each.row() for each in self.compared])
        for each in self.compared:
            print(f"\n  {each.name}: {each.judgement}")
            for line in each.paths:
                print(f"    {line}")
        self._look_around()

    def report(self) -> None:
        """Write the page, and print where everything is."""
        path = self.folder / "report.html"
        page = tour_page(self.compared, self.predicted_models, noisy=self.foreign > _NOISY)
        path.write_text(page, encoding="utf-8")
        print(f"  {path}: open it in a browser")
        for each in self.written:
            print(f"  {each}: open it in ui.perfetto.dev")

    @property
    def _has_time(self) -> bool:
        return time.monotonic() - self.began < _LONG

    def _look_around(self) -> None:
        """Check whether other processes use the cores, which makes measurements noisy."""
        share = foreign_share(0.3)
        self.foreign = max(self.foreign, share)
        if share > _NOISY:
            print(
                f"  noisy: other processes use {share:.0%} of the cores, "
                "so times vary more than usual"
            )

    def as_busy(self, on: Platform) -> Platform:
        """Return the platform with ranges for what others have of the cores now.

        Ops are timed now and steps run now, also where the calibration is of a quieter hour.
        """
        if on.noise is None or on.noise.foreign >= self.foreign:
            return on
        return replace(on, noise=replace(on.noise, foreign=self.foreign))

    def _write_prediction(self, name: str, made: Planned) -> None:
        found = predict(made.graph, made.on, prices=Prices(made.on, library="gloo"), anyway=True)
        path = self.folder / f"predicted-{name}.json"
        write_perfetto(path, found.timeline)
        self.written.append(path)
        self.predicted_models.append(PredictedModel(name, made.plan, found))


def _is_current() -> bool:
    """Return whether there is a recent calibration of this machine and this torch."""
    from weft.calibration.torch_calibration import current_here

    return current_here() is not None


def _planned_row(made: Planned) -> dict[str, Any]:
    plan = made.plan
    return {
        "baseline": plan.baseline,
        "planned": plan.planned,
        "gain": plan.speedup,
        "range": f"{format_time(plan.low)} to {format_time(plan.high)}",
        "ops": sum(len(step.ops) for step in made.graph.steps),
    }


def _compared(name: str, made: Planned, outcome: ContestOutcome) -> Compared:
    rows = [row for answer in outcome.answers["plan"][-RANKS:] for row in answer["rows"]]
    mine = [row for row in rows if row["planned"] != "nothing"]
    paths = [f"{r['collective']} of {format_size(r['nbytes'])}: {r['path']}" for r in mine]
    times = {run: tuple(t / STEPS for t in outcome.times[run]) for run in ("gloo", "plan")}
    return Compared(
        name=name,
        plan=made.plan,
        default=times["gloo"],
        by_plan=times["plan"],
        ratio=outcome.compare("gloo", "plan").ratio,
        paths=tuple(dict.fromkeys(paths)),
    )


_PLANNED = (
    Column("model", "model", right=False, style="bold"),
    Column("ops", "ops"),
    Column("baseline", "step with Gloo", format_time),
    Column("planned", "by plan", format_time),
    Column("range", "range"),
    Column("gain", "faster", "{:.2f}x".format),
)
