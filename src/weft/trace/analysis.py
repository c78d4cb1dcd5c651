"""What an analysis says: typed, in seconds and bytes.

Definitions, for one rank and one GPU:

- *GPU events* are kernels, copies and sets. *busy* is the time that any of them covers,
  *communication* what collective kernels cover, *compute* what all others cover, copies included.
- *exposed* is communication that nothing else on that GPU covers: busy - compute.
- *span* is from the first start to the last end of GPU events; *idle* is span - busy.
- *moving* is the part of communication in which bytes move: for a collective seen on several
  ranks from the last start to the first end. *waiting* is the rest: other ranks were not there yet.
  With one rank, moving is estimated from the link (``basis`` says so).
- A *step* is a profiler mark on the host; a GPU event belongs to the step that launched it. *wall*
  is the mark's, *period* from the first kernel of a step to that of the next. Events launched
  before the window are *backlog* and in no step.
- Totals of a rank cover every GPU event of its file. The step time and what a step spends are means
  over the middle half of the steps by time, so that one that stumbled does not count for all.

None stands where a trace does not say; ``notes`` say why.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from weft.errors import UsageError
from weft.trace.trace import Trace
from weft.units import brief

MEASURED, ESTIMATED = "measured", "estimated"


@dataclass(frozen=True, slots=True)
class Split:
    """Where the time of a GPU went; waiting and moving are parts of communication."""

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
class Step:
    """One step of a rank; ``idle`` is what of its period or wall its GPU events leave open."""

    name: str
    start: float
    wall: float
    period: float | None
    split: Split

    @property
    def seconds(self) -> float:
        """How long the step took: its period where there is one."""
        return self.wall if self.period is None else self.period


@dataclass(frozen=True, slots=True)
class Use:
    """One collective on one rank; ``link`` is the bus bandwidth that its link can do."""

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
    last_rank: int | None = None  # which rank all others waited for


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How much longer kernels take beside communication, at the same place of a step."""

    family: str
    num_pairs: int
    median: float
    weighted: float
    p90: float
    lost: float  # seconds in all steps


@dataclass(frozen=True, slots=True)
class Part:
    """A share of some time, and what it went to."""

    what: str
    seconds: float
    count: int = 0


@dataclass(frozen=True, slots=True)
class Path:
    """What the end of a step waited for, walked back to its start; parts sum to ``seconds``."""

    __repr__ = brief

    step: str
    seconds: float
    parts: tuple[Part, ...]
    longest: tuple[Part, ...]  # by name, the longest first
    rows: tuple[int, ...] = ()  # of the trace, in order of time: GPU events and their launches

    def as_result(self) -> dict[str, Any]:
        """Give what a program can use without the trace."""
        return {key: value for key, value in asdict(self).items() if key != "rows"}


@dataclass(frozen=True, slots=True)
class RankAnalysis:
    """What one file says."""

    __repr__ = brief

    trace: Trace
    span: float
    total: Split
    backlog: Split | None
    steps: tuple[Step, ...]
    steps_found: bool  # by their period: the file has no marks
    collectives: tuple[Use, ...]
    slowdowns: tuple[Slowdown, ...]
    idle: tuple[Part, ...]
    idle_under: tuple[Part, ...]  # what the host was in meanwhile, by name, the longest first
    path: Path | None
    basis: str  # of waiting and moving
    notes: tuple[str, ...]

    @property
    def file(self) -> str:
        """The file it was read from."""
        return self.trace.path

    @property
    def rank(self) -> int | None:
        """The rank, where the file says."""
        return self.trace.rank

    @property
    def middle(self) -> tuple[Step, ...]:
        """The steps that are neither the quickest nor the slowest quarter; means are over these."""
        timed = [step for step in self.steps if step.period is not None] or list(self.steps)
        ordered = sorted(timed, key=lambda step: step.seconds)
        cut = len(ordered) // 4
        return tuple(ordered[cut : len(ordered) - cut])

    @property
    def step_time(self) -> float | None:
        """The mean period of the middle steps, or their wall where there is but one step."""
        times = [step.seconds for step in self.middle]
        return sum(times) / len(times) if times else None

    @property
    def mean_step(self) -> Split:
        """The mean over the middle steps; of a file without steps, all there is."""
        splits = [step.split for step in self.middle]
        if not splits:
            return self.total
        means: dict[str, Any] = {}
        for field in fields(Split):
            values = [getattr(split, field.name) for split in splits]
            means[field.name] = None if None in values else sum(values) / len(values)
        return Split(**means)

    @property
    def is_gpu_bound(self) -> bool:
        """Whether the GPU runs behind its host: its period is longer than the host's steps."""
        walls = [step.wall for step in self.middle if step.period is not None]
        time = self.step_time
        return bool(walls) and time is not None and time > 1.05 * sum(walls) / len(walls)

    def as_result(self) -> dict[str, Any]:
        """Give the keys of a result row."""
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
            "basis": self.basis,
            "steps": [_step_row(step) for step in self.steps],
            "backlog": asdict(self.backlog) if self.backlog else None,
            "collectives": [asdict(use) for use in self.collectives],
            "slowdowns": [asdict(each) for each in self.slowdowns],
            "idle_reasons": [asdict(each) for each in self.idle],
            "idle_under": [asdict(each) for each in self.idle_under],
            "critical_path": self.path.as_result() if self.path else None,
            "device": self.trace.device,
            "losses": self.trace.losses,
            "notes": self.notes,
        }


def _step_row(step: Step) -> dict[str, Any]:
    head = {"name": step.name, "start": step.start, "wall": step.wall, "period": step.period}
    return {**head, **asdict(step.split)}


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that others waited for: in how many collectives, what it cost them, and why."""

    rank: int
    num_last: int
    num_collectives: int
    cost: float  # seconds that the others waited for it, summed over them
    why: str


@dataclass(frozen=True, slots=True)
class Advice:
    """Something to do, and the most it could save of a step."""

    title: str
    gain: float  # seconds of a step, at most
    why: str
    how: str


@dataclass(frozen=True, slots=True)
class Analysis:
    """What the files of a job say together."""

    __repr__ = brief

    ranks: tuple[RankAnalysis, ...]
    world_size: int | None
    aligned_within: float | None  # seconds between the ends of one collective on all ranks
    stragglers: tuple[Straggler, ...]
    advice: tuple[Advice, ...]
    notes: tuple[str, ...]

    @property
    def step_time(self) -> float | None:
        """The mean step of the slowest rank: the others wait for it."""
        return max((r.step_time for r in self.ranks if r.step_time is not None), default=None)

    @property
    def slowest(self) -> RankAnalysis | None:
        """The rank with the longest step, or the longest file, of those that have GPU events."""
        useful = [rank for rank in self.ranks if rank.total.num_gpu_events]
        return max(useful, key=lambda rank: rank.step_time or rank.span, default=None)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Give one result row a file."""
        return (rank.as_result() for rank in self.ranks)

    def step_rows(self) -> list[dict[str, Any]]:
        """Give one flat row a rank and step."""
        return [
            {"file": rank.file, "rank": rank.rank, **_step_row(step)}
            for rank in self.ranks
            for step in rank.steps
        ]

    def collective_rows(self) -> list[dict[str, Any]]:
        """Give one flat row a rank and collective."""
        return [
            {"file": rank.file, "rank": rank.rank, **asdict(use)}
            for rank in self.ranks
            for use in rank.collectives
        ]

    def to_pandas(self, what: str = "steps") -> Any:
        """Give a DataFrame of ``steps``, ``ranks`` or ``collectives``; needs pandas."""
        tables: dict[str, Callable[[], list[dict[str, Any]]]] = {
            "steps": self.step_rows,
            "collectives": self.collective_rows,
            "ranks": lambda: [_flat(row) for row in self.rows()],
        }
        if what not in tables:
            raise UsageError(f"there is no table of {what!r}", f"Use one of {', '.join(tables)}.")
        try:
            import pandas as pd
        except ImportError:
            raise UsageError("pandas is not installed", "Try: pip install pandas") from None
        return pd.DataFrame(tables[what]())


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if not isinstance(value, list | tuple | dict)}
