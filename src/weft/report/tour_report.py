"""The page of a tour: steps with Gloo and with the plan, predicted and measured."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from weft.planner.plan import Choice, Plan
from weft.planner.predict import Prediction
from weft.report.bars import ChartBar, bar_chart
from weft.report.interactive_timeline import timeline_section
from weft.report.page import Section, html_page, tiles, words
from weft.report.picture import picture_of
from weft.report.text import Column
from weft.units import format_time

COMPARED = (
    Column("name", "model", right=False, style="bold"),
    Column("default", "with Gloo", format_time),
    Column("predicted_default", "predicted", format_time),
    Column("by_plan", "by plan", format_time),
    Column("predicted", "predicted", format_time),
    Column("ratio", "faster", "{:.2f}x".format),
    Column("predicted_ratio", "predicted", "{:.2f}x".format),
)
_CLOSE = 0.10  # fraction of a step: a predicted gain this close counts as correct
_SHOWN_SPANS = 20_000
_WORDS = {
    "with Gloo": "what torch does by itself: DDP and all-to-all through Gloo",
    "by plan": "the same job after weft.torch.apply(plan)",
    "predicted": "from the calibration of this machine, before anything was run",
    "measured": "the median of steps on two ranks, alternating with and without the plan",
}


@dataclass(frozen=True)
class Compared:
    """A model run with and without its plan: measured seconds, and the plan's prediction."""

    name: str
    plan: Plan
    default: tuple[float, ...]
    by_plan: tuple[float, ...]
    ratio: float
    paths: tuple[str, ...] = ()

    @property
    def gain(self) -> float:
        """The measured fraction of the step that the plan saved."""
        return 1 - 1 / self.ratio

    @property
    def judgement(self) -> str:
        """Whether the plan was right, in one line."""
        off = self.gain - self.plan.gain
        text = f"the plan saves {self.gain:.0%} of the step, {self.plan.gain:.0%} was predicted"
        if abs(off) <= _CLOSE:
            return f"{text}: predicted within {abs(off) * 100:.0f} points"
        return f"{text}: {abs(off) * 100:.0f} points {'more' if off > 0 else 'less'} than predicted"

    def row(self) -> dict[str, Any]:
        """Return the numbers of a table row."""
        return {
            "name": self.name,
            "default": median(self.default),
            "predicted_default": self.plan.baseline,
            "by_plan": median(self.by_plan),
            "predicted": self.plan.planned,
            "ratio": self.ratio,
            "predicted_ratio": self.plan.speedup,
        }


@dataclass(frozen=True)
class PredictedModel:
    """A model, its plan, and the prediction of a step without it."""

    name: str
    plan: Plan
    default: Prediction


def tour_page(
    compared: Sequence[Compared], predicted_models: Sequence[PredictedModel], *, noisy: bool
) -> str:
    """Return the page; parts of the tour that failed are omitted."""
    sections = [*_steps(compared), *(_choices(each.name, each.plan) for each in predicted_models)]
    sections += [_timeline(number, each) for number, each in enumerate(predicted_models)]
    lead = " ".join(f"{each.name}: {each.judgement}." for each in compared)
    if noisy:
        lead += " The machine was busy with other work meanwhile, so times vary more than usual."
    top = tiles(
        [
            (f"{each.name} by plan", f"{each.ratio:.2f}x", f"predicted {each.plan.speedup:.2f}x")
            for each in compared
        ]
    )
    return html_page("A tour of this machine", sections, lead=lead.strip(), top=top)


def _steps(compared: Sequence[Compared]) -> Iterator[Section]:
    if not compared:
        return
    bars = [bar for each in compared for bar in _bars(each)]
    kinds = {"predicted": "control", "measured": "computation"}
    yield Section(
        "Steps, predicted and measured",
        "How long one training step of each model takes on two ranks of this machine.",
        COMPARED,
        [each.row() for each in compared],
        drawings=[bar_chart(bars, kinds, label="Length of steps"), words(_WORDS)],
        fold="The same in numbers",
        unfolded=True,
    )
    paths = [{"name": each.name, "path": path} for each in compared for path in each.paths]
    if paths:
        yield Section(
            "Path of every collective",
            "As weft.torch.apply counted them while the planned steps ran.",
            [Column("name", "model", right=False), Column("path", "path", right=False)],
            paths,
        )


def _bars(each: Compared) -> list[ChartBar]:
    plan, default, by_plan = each.plan, median(each.default), median(each.by_plan)
    return [
        ChartBar(
            f"{each.name} with Gloo", {"predicted": plan.baseline}, format_time(plan.baseline)
        ),
        ChartBar(f"{each.name} with Gloo", {"measured": default}, format_time(default)),
        ChartBar(
            f"{each.name} by plan",
            {"predicted": plan.planned},
            format_time(plan.planned),
            plan.low,
            plan.high,
        ),
        ChartBar(f"{each.name} by plan", {"measured": by_plan}, format_time(by_plan)),
    ]


def _choices(name: str, plan: Plan) -> Section:
    columns = [
        Column("pair", "collective", right=False),
        Column("strategy", "planned", right=False),
        Column("settings", "settings", right=False),
        Column("seconds", "takes", format_time),
        Column("gain", "saves", "{:.1%}".format),
        Column("why", "why", right=False),
        Column("others", "not chosen", right=False),
    ]
    text = f"The plan for {name}: what each collective does, and what was not chosen."
    return Section(f"The plan for {name}", text, columns, [_choice(c) for c in plan.choices])


def _choice(choice: Choice) -> dict[str, Any]:
    settings = ", ".join(f"{key} {value}" for key, value in choice.strategy.settings.items())
    others = "; ".join(
        f"{each.strategy.name}: {each.why}"
        for each in choice.alternatives
        if each.seconds is not None
    )
    return {
        "pair": choice.pair,
        "strategy": choice.strategy.name,
        "settings": settings,
        "seconds": choice.seconds,
        "gain": choice.gain,
        "why": choice.why,
        "others": others,
    }


def _timeline(number: int, each: PredictedModel) -> Section:
    picture = picture_of(each.default.timeline)
    text = "What a step with Gloo was predicted to look like; the critical path is underlined."
    title = f"Predicted step of {each.name}"
    return timeline_section(picture, title, text, number=number, most=_SHOWN_SPANS)
