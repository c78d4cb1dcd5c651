"""The result of a trace analysis: typed, in seconds and bytes.

Definitions, for one rank and one GPU:

- *GPU events* are kernels, copies and memsets. *busy* is the time that any of them covers,
  *communication* what collective kernels cover, *compute* what all others cover, including copies.
- *exposed* is communication that nothing else on that GPU overlaps: busy - compute.
- *span* is from the first start to the last end of GPU events; *idle* is span - busy.
- *moving* is the part of communication in which bytes move: for a collective seen on several
  ranks from the last start to the first end. *waiting* is the rest: other ranks had not arrived.
  With one rank, moving is estimated from the link (``basis`` says so).
- A *step* is a profiler mark on the host; a GPU event belongs to the step that launched it. *wall*
  is the duration of the mark, *period* is from the first kernel of a step to that of the next.
  Events launched before the window are *backlog* and belong to no step.
- Totals of a rank cover every GPU event of its file. The *step time* is the mean period; steps that
  took over ten times the median (outliers) do not count. The mean step is counted in time, not by
  launch: all that the GPU did from the beginning of a step to that of the next. So *busy* and
  *idle* add up to the step time, and no GPU is busy for more than 100 %.

None means that a trace does not contain the information; ``notes`` say why.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from weft.result_tables import ResultTables, Tables
from weft.trace.trace import Trace
from weft.units import brief

MEASURED, ESTIMATED = "measured", "estimated"
REPLAYED, BOUND = "replayed", "bound"  # what the gain of an advice is
_STUMBLED = 10.0  # times the median step: compilation, evaluation, a checkpoint


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """How a GPU spent its time; waiting and moving are parts of communication."""

    num_gpu_events: int
    busy: float
    compute: float
    communication: float
    exposed: float
    waiting: float | None = None
    moving: float | None = None
    exposed_waiting: float | None = None
    exposed_moving: float | None = None


@dataclass(frozen=True, slots=True)
class StepAnalysis:
    """One step of a rank: ``split`` is what it launched, ``inside`` what the GPU did meanwhile.

    ``inside`` covers the period, or the wall if no step of the trace has a period; it is None for a
    step whose period is unknown.
    """

    name: str
    start: float
    wall: float
    period: float | None
    split: TimeSplit
    inside: TimeSplit | None = None

    @property
    def seconds(self) -> float:
        """The duration of the step: its period if known, otherwise its wall."""
        return self.wall if self.period is None else self.period


@dataclass(frozen=True, slots=True)
class CollectiveUse:
    """One collective on one rank; ``link`` is the bus bandwidth its link can reach."""

    kind: str
    name: str
    nbytes: int | None
    dtype: str
    group: str
    num_ranks: int | None
    step: int  # index of the step, -1 for none, -2 for backlog
    start: float
    seconds: float
    exposed: float
    waiting: float | None
    moving: float | None
    busbw: float | None
    link: float | None
    basis: str
    last_rank: int | None = None  # the rank that all others waited for
    ranks: tuple[int, ...] = ()  # of the group; empty if the file does not list them


@dataclass(frozen=True, slots=True)
class KernelSlowdown:
    """How much longer kernels take while overlapped with communication."""

    family: str
    num_pairs: int
    median: float
    weighted: float
    p90: float
    lost: float  # seconds in all steps


@dataclass(frozen=True, slots=True)
class TimePart:
    """A part of some duration, and what it was spent on."""

    what: str
    seconds: float
    count: int = 0


@dataclass(frozen=True, slots=True)
class KernelUse:
    """Kernels of one name and shape in the counted steps of a rank, or in its whole file."""

    family: str
    name: str
    operator: str  # that launched it; "" if the trace does not tell
    shape: str  # of the operator's input tensors
    count: int
    seconds: float
    share: float  # of the seconds of all GPU events
    shortest: float
    longest: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """What the end of a step waited for, back to its start; parts add up to ``seconds``."""

    __repr__ = brief

    step: str
    seconds: float
    parts: tuple[TimePart, ...]
    longest: tuple[TimePart, ...]  # by name, the longest first
    rows: tuple[int, ...] = ()  # rows of the trace in order of time: GPU events and their launches

    def as_result(self) -> dict[str, Any]:
        """Return the result without rows of the trace."""
        return {key: value for key, value in asdict(self).items() if key != "rows"}


@dataclass(frozen=True, slots=True)
class RankAnalysis:
    """The analysis of one file."""

    __repr__ = brief

    trace: Trace
    span: float
    total: TimeSplit
    backlog: TimeSplit | None
    steps: tuple[StepAnalysis, ...]
    steps_found: bool  # found by their period: the file has no marks
    collectives: tuple[CollectiveUse, ...]
    slowdowns: tuple[KernelSlowdown, ...]
    idle: tuple[TimePart, ...]
    idle_under: tuple[TimePart, ...]  # what the host was in meanwhile, by name, the longest first
    step_idle: tuple[TimePart, ...]  # the reasons in the mean step
    step_preparing: tuple[TimePart, ...]  # what the host was in before the first kernel of a step
    step_launching: tuple[TimePart, ...]  # and whenever else it was late
    kernels: tuple[
        TimePart, ...
    ]  # families of kernels and copies in the mean step, the longest first
    kernel_table: tuple[KernelUse, ...]  # by name and shape in the counted steps
    path: CriticalPath | None
    basis: str  # of waiting and moving
    notes: tuple[str, ...]

    @property
    def file(self) -> str:
        """The file it was read from."""
        return self.trace.path

    @property
    def rank(self) -> int | None:
        """The rank, if the file contains it."""
        return self.trace.rank

    @property
    def counted(self) -> tuple[StepAnalysis, ...]:
        """The steps that means are taken over: all with a period that are not outliers."""
        return tuple(self.steps[number] for number in counted_steps(self.steps))

    @property
    def step_time(self) -> float | None:
        """The mean period of the steps, or the wall if there is only one step."""
        times = [step.seconds for step in self.counted]
        return sum(times) / len(times) if times else None

    @property
    def seconds(self) -> float:
        """The reference of fractions: the step time, or the span of a file without steps."""
        return self.step_time or self.span

    @property
    def busy_share(self) -> float:
        """The fraction of the mean step, or of the span, in which a GPU event ran."""
        return min(self.mean_step.busy / self.seconds, 1.0) if self.seconds else 0.0

    @property
    def mean_idle(self) -> float:
        """The idle seconds of the mean step, or of the span."""
        return max(self.seconds - self.mean_step.busy, 0.0)

    @property
    def mean_step(self) -> TimeSplit:
        """What the GPU did in the mean step, or in the whole file if it has no steps."""
        splits = [step.inside for step in self.counted if step.inside is not None]
        if not splits:
            return self.total
        means: dict[str, Any] = {}
        for field in fields(TimeSplit):
            values = [getattr(split, field.name) for split in splits]
            means[field.name] = None if None in values else sum(values) / len(values)
        return TimeSplit(**means)

    @property
    def is_gpu_bound(self) -> bool:
        """Whether the GPU lags behind its host: its period is longer than the host's steps."""
        walls = [step.wall for step in self.counted if step.period is not None]
        time = self.step_time
        return bool(walls) and time is not None and time > 1.05 * sum(walls) / len(walls)

    def as_result(self) -> dict[str, Any]:
        """Return the keys of a result row."""
        total = asdict(self.total)
        return {
            "file": self.file,
            "rank": self.rank,
            "num_events": self.trace.num_events,
            "num_gpu_events": total.pop("num_gpu_events"),
            "span": self.span,
            **total,
            "idle": self.span - self.total.busy,
            "step_time": self.step_time,
            "busy_share": self.busy_share,
            "mean_step": asdict(self.mean_step) | {"idle": self.mean_idle},
            "basis": self.basis,
            "steps": [_step_row(step) for step in self.steps],
            "backlog": asdict(self.backlog) if self.backlog else None,
            "collectives": [asdict(use) for use in self.collectives],
            "slowdowns": [asdict(each) for each in self.slowdowns],
            "idle_reasons": [asdict(each) for each in self.idle],
            "idle_under": [asdict(each) for each in self.idle_under],
            "step_idle_reasons": [asdict(each) for each in self.step_idle],
            "kernel_families": [asdict(each) for each in self.kernels],
            "kernels": [asdict(each) for each in self.kernel_table],
            "critical_path": self.path.as_result() if self.path else None,
            "device": self.trace.device,
            "losses": self.trace.losses,
            "notes": self.notes,
        }


def counted_steps(steps: Sequence[StepAnalysis]) -> list[int]:
    """Return the indices of the steps that means are taken over."""
    return counted_times([step.period for step in steps], [step.wall for step in steps])


def counted_times(periods: Sequence[float | None], walls: Sequence[float]) -> list[int]:
    """Return the same of steps that are known by their periods and walls."""
    timed = [n for n, period in enumerate(periods) if period is not None and period > 0]
    timed = timed or list(range(len(walls)))
    if not timed:
        return []
    times = [wall if own is None else own for own, wall in zip(periods, walls, strict=True)]
    usual = median(times[n] for n in timed)
    return [n for n in timed if times[n] <= _STUMBLED * usual] or timed


def _step_row(step: StepAnalysis) -> dict[str, Any]:
    head = {"name": step.name, "start": step.start, "wall": step.wall, "period": step.period}
    return {**head, **asdict(step.split)}


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that others waited for: in how many of its collectives, at which cost, and why."""

    rank: int
    num_last: int
    num_collectives: int
    cost: float  # seconds that the others waited for it, summed over them
    why: str


@dataclass(frozen=True, slots=True)
class StepAdvice:
    """A recommendation, and what it could save of a step.

    ``gain`` is what a replay of the step with ``change`` saves (``basis`` is ``replayed``), as in
    ``weft whatif``; or, if no replay can tell, what the step loses by it: an upper bound (``basis``
    is ``bound``).
    """

    title: str
    gain: float  # seconds of a step
    why: str
    how: str
    share: float = 0.0  # the gain as a fraction of the step
    basis: str = BOUND
    change: str = ""  # of weft whatif; "" if no change does this
    doubt: str = ""  # why the gain is only a bound


@dataclass(frozen=True, slots=True)
class Analysis(ResultTables):
    """The analysis of the files of a job, or of several jobs that were read at once."""

    __repr__ = brief

    ranks: tuple[RankAnalysis, ...]
    world_size: int | None
    aligned_within: float | None  # seconds between the ends of one collective on all ranks
    stragglers: tuple[Straggler, ...]
    advice: tuple[StepAdvice, ...]
    notes: tuple[str, ...]
    jobs: "tuple[Analysis, ...]" = ()  # one for each job, if the files are of several

    @property
    def name(self) -> str:
        """The file of the job, or its first file and how many more there are."""
        first, more = Path(self.ranks[0].file).name, len(self.ranks) - 1
        first = first.removesuffix(".gz").removesuffix(".json")
        return f"{first} and {more} more" if more else first

    @property
    def step_time(self) -> float | None:
        """The mean step of the slowest rank, which the others wait for; None of several jobs."""
        if self.jobs:
            return None
        return max((r.step_time for r in self.ranks if r.step_time is not None), default=None)

    @property
    def slowest(self) -> RankAnalysis | None:
        """The rank with the longest step, or the longest file, among those with GPU events."""
        useful = [rank for rank in self.ranks if rank.total.num_gpu_events]
        return max(useful, key=lambda rank: rank.step_time or rank.span, default=None)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield one result row per file."""
        return (rank.as_result() for rank in self.ranks)

    def step_rows(self) -> list[dict[str, Any]]:
        """Return one flat row per rank and step."""
        return [
            {"file": rank.file, "rank": rank.rank, **_step_row(step)}
            for rank in self.ranks
            for step in rank.steps
        ]

    def collective_rows(self) -> list[dict[str, Any]]:
        """Return one flat row per rank and collective."""
        return [
            {"file": rank.file, "rank": rank.rank, **asdict(use)}
            for rank in self.ranks
            for use in rank.collectives
        ]

    def kernel_rows(self) -> list[dict[str, Any]]:
        """Return one flat row per rank, kernel and shape."""
        return [
            {"file": rank.file, "rank": rank.rank, **asdict(use)}
            for rank in self.ranks
            for use in rank.kernel_table
        ]

    def tables(self) -> Tables:
        """Return the tables of an analysis: steps, collectives, kernels and ranks."""
        return {
            "steps": self.step_rows,
            "collectives": self.collective_rows,
            "kernels": self.kernel_rows,
            "ranks": self.rows,
        }
