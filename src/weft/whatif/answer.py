"""What if: the replayed step, and what it would take with each change.

The step is the mean over all recorded ones. A change is made to the step that is nearest the mean,
and what it saves there, as a share, is taken of the mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from weft.hardware import Platform
from weft.result_tables import ResultTables, Tables
from weft.step import StepRun
from weft.timeline import Timeline
from weft.trace import Trace, read
from weft.trace.analysis.align import AlignedJob, RankTrace
from weft.trace.formats.reading import TracesRead, jobs_of, read_traces
from weft.trace.formats.trace_files import trace_files
from weft.units import brief
from weft.whatif.change import NAMES, Change, change, scaling_of
from weft.whatif.joined_job import JobReplay, job_of, job_replay, straggler, without_straggler
from weft.whatif.model import ReplayModel, model_of
from weft.whatif.replay import Replay, doubt, require_close
from weft.whatif.retarget import on_machine

NO_STRAGGLER = "no-straggler"
# Why a change that needs no collective changes nothing.
_ABSENT = {
    "no-input": "the host goes from one step to the next in no time",
    "no-sync": "the host never waits for the device",
    "no-gaps": "queued kernels follow each other without a pause",
    "no-slowdown": "no op is held up by one that runs at the same time",
}


@dataclass(frozen=True, slots=True)
class Base:
    """What changes are compared with: the step they are made to, and the mean of all steps."""

    seconds: float
    mean: float
    replays: Sequence[Replay]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A step with one change: seconds, a range, and the assumption behind them."""

    name: str
    step: float
    low: float
    high: float
    gain: float  # of the replayed step, as a share
    why: str

    @classmethod
    def of(cls, change: Change, base: Base) -> Outcome:
        """Make it of the step that is taken to be right and those at the ends of its range.

        What the replay is wrong by, a change may be wrong by, as far as it changes anything.
        """
        against = base.seconds if change.against is None else change.against.seconds
        shares = [run.seconds / against for run in (change.run, *change.ends)]
        spread = max(abs(each.error) for each in base.replays) * abs(1 - shares[0])
        low, high = max(0.0, min(shares) - spread), max(shares) + spread
        step, least, most = (share * base.mean for share in (shares[0], low, high))
        return cls(change.name, step, least, most, 1 - shares[0], change.why)

    def as_row(self) -> dict[str, Any]:
        """Return it under the keys that ``weft whatif`` has."""
        return {
            name: getattr(self, name) for name in ("name", "step", "gain", "why", "low", "high")
        }


@dataclass(frozen=True)
class Answer(ResultTables):
    """A trace replayed and changed. Times are means over the recorded steps.

    ``doubt`` says why nothing should be concluded from it, "" where the replay is close enough.
    ``straggler`` is the rank that ``no-straggler`` brings in time.
    """

    __repr__ = brief

    file: str
    rank: int | None
    replays: tuple[Replay, ...]
    measured_step: float
    replayed_step: float
    outcomes: tuple[Outcome, ...]
    notes: tuple[str, ...] = ()
    runs: dict[str, StepRun] = field(default_factory=dict, compare=False)
    doubt: str = ""
    straggler: int | None = None

    @property
    def which_step(self) -> str:
        """What its times are of, in words: a plan of the same trace is of its typical step."""
        return "the mean step" if len(self.replays) > 1 else "a step"

    @property
    def replay_error(self) -> float:
        """How much longer the replay is than what was measured, as a share."""
        return self.replayed_step / self.measured_step - 1

    def tables(self) -> Tables:
        """Return the tables of an answer: the changes, and how well each step was replayed."""
        row = self.as_row()
        return {"strategies": lambda: row["strategies"], "steps": lambda: row["steps"]}

    def timeline(self, name: str | None = None) -> Timeline:
        """Return the step with the change of that name, or unchanged, as a Timeline."""
        return self.runs[name or ""].timeline()

    def as_row(self) -> dict[str, Any]:
        """Return it under the keys that ``weft whatif`` has."""
        return {
            "file": self.file,
            "rank": self.rank,
            "measured_step": self.measured_step,
            "replayed_step": self.replayed_step,
            "replay_error": self.replay_error,
            "reliable": not self.doubt,
            "held_out": all(each.held_out for each in self.replays),
            "by_device": any(each.by_device for each in self.replays),
            "strategies": [outcome.as_row() for outcome in self.outcomes],
            "steps": [
                {
                    "name": each.name,
                    "measured": each.measured,
                    "replayed": each.simulated,
                    "error": each.error,
                }
                for each in self.replays
            ],
            "notes": list(self.notes),
            "basis": "predicted",
        }


def what_if(
    trace: Trace | Path | str,
    names: Sequence[str] = (),
    *,
    on: Platform | None = None,
    anyway: bool = False,
) -> Answer:
    """Replay one rank's trace, or its file, then with each change; ``on`` moves it elsewhere.

    A replay that is more than ``MOST_ERROR`` off raises a ReplayError, unless ``anyway``.
    """
    found = trace if isinstance(trace, Trace) else read(trace)
    return _rank_answer(RankTrace.of(found), names, on, anyway=anyway)


def what_if_jobs(
    traces: Sequence[Trace | Path | str],
    names: Sequence[str] = (),
    *,
    on: Platform | None = None,
    anyway: bool = False,
) -> list[Answer]:
    """Answer for each job among traces; its ranks are replayed together where they meet.

    A path is a file, a folder, a glob or an archive. A replay that is more than ``MOST_ERROR`` off
    raises a ReplayError, unless ``anyway``.
    """
    require_known(names)
    found = _read(traces)
    jobs, apart = jobs_of(found.traces)
    answers = [answer for job in jobs for answer in answers_of(job, names, on, anyway=anyway)]
    first = replace(answers[0], notes=(*found.skipped, *apart, *answers[0].notes))
    return [first, *answers[1:]]


def what_if_job(
    traces: Sequence[Trace | Path | str],
    names: Sequence[str] = (),
    *,
    on: Platform | None = None,
    anyway: bool = False,
) -> Answer:
    """Replay the ranks of a job together, then with each change; the slowest rank counts."""
    return _job_answer(job_replay(job_of(_read(traces).traces)), names, on, anyway=anyway)


def answers_of(
    job: AlignedJob, names: Sequence[str], on: Platform | None = None, *, anyway: bool = False
) -> list[Answer]:
    """Answer for a job as a whole where its ranks meet, else for each rank by itself."""
    if not job.matches:
        return [_rank_answer(ranked, names, on, anyway=anyway) for ranked in job.ranks]
    joined = job_replay(job)
    if joined.calls[0]:
        return [_job_answer(joined, names, on, anyway=anyway)]
    note = "replayed by itself: no collective of the step says when the other ranks came to it"
    alone = (_rank_answer(ranked, names, on, anyway=anyway) for ranked in job.ranks)
    return [replace(answer, notes=(note, *answer.notes)) for answer in alone]


def require_known(names: Sequence[str]) -> None:
    """Raise for names of no change, before anything is replayed."""
    for name in names:
        if name != NO_STRAGGLER:
            scaling_of(name)


def _read(traces: Sequence[Trace | Path | str]) -> TracesRead:
    given = [each for each in traces if isinstance(each, Trace)]
    paths = [each for each in traces if not isinstance(each, Trace)]
    if given and not paths:
        return TracesRead(given, [])
    found = read_traces(trace_files(paths))
    return TracesRead([*given, *found.traces], found.skipped)


def _rank_answer(
    ranked: RankTrace, names: Sequence[str], on: Platform | None, *, anyway: bool = False
) -> Answer:
    model = model_of(ranked)
    if not anyway:
        require_close(ranked.trace.path, model.replays)
    base = Base(model.run.seconds, fmean(each.simulated for each in model.replays), model.replays)
    return _answered(model, names, on, base, rank=ranked.trace.rank, notes=_notes(model))


def _job_answer(
    job: JobReplay, names: Sequence[str], on: Platform | None, *, anyway: bool = False
) -> Answer:
    model, recorded = job.model, job.run()
    if not anyway:
        require_close(model.name, model.replays)
    chosen = max(each.measured for each in model.replays)
    scale = max(job.means) / chosen  # the chosen step is near the mean of all
    base = Base(model.run.seconds, scale * recorded.seconds, model.replays)
    late = straggler(job, recorded)
    first = [] if names and NO_STRAGGLER not in names else [_no_straggler(job, late, recorded)]
    answer = _answered(model, names, on, base, first=first, notes=_job_notes(job, recorded))
    return replace(answer, measured_step=max(job.means), straggler=model.traces[late].rank)


def _answered(
    model: ReplayModel,
    names: Sequence[str],
    on: Platform | None,
    base: Base,
    *,
    notes: Sequence[str],
    rank: int | None = None,
    first: Sequence[Change] = (),
) -> Answer:
    """Run the changes asked for, or all; ``first`` are some that were run already."""
    made, missing = list(first), list[str]()
    if on is not None:
        made.append(on_machine(model, on))
    for name in names or (NAMES if on is None else ()):
        if name == NO_STRAGGLER:
            continue
        found = change(model, name)
        if found is not None:
            made.append(found)
        elif names:
            missing.append(f"{name} changes nothing here: {_nothing(model, name)}")
    return Answer(
        file=model.name,
        rank=rank,
        replays=model.replays,
        measured_step=fmean(each.measured for each in model.replays),
        replayed_step=base.mean,
        outcomes=tuple(Outcome.of(each, base) for each in made),
        notes=(*notes, *missing),
        doubt=doubt(model.replays),
        runs={"": model.run} | {each.name: each.run for each in made},
    )


def _no_straggler(job: JobReplay, rank: int, now: StepRun) -> Change:
    run = job.run(without_straggler(job, rank))
    before, after = job.waits(now).sum(), job.waits(run).sum()
    why = f"rank {job.model.traces[rank].rank} comes to no collective later than the last of the "
    why += f"others: all ranks wait {after * 1e3:.1f} ms in sum, not {before * 1e3:.1f}"
    return Change(NO_STRAGGLER, why, run, against=now)


def _nothing(model: ReplayModel, name: str) -> str:
    if name in _ABSENT:
        return _ABSENT[name]
    if not model.comms:
        return "the step has no collective"
    return "no collective of the step has a size, group and device that it is known for"


def _notes(model: ReplayModel) -> list[str]:
    notes, (step,) = list[str](), model.ranks
    if not step.held_out:
        notes.append("one step was recorded, so its replay is put together from itself")
    if step.by_device:
        notes.append("the device runs behind its host: steps are its periods")
    waited = sum(op.waiting for op in model.comms)
    total = waited + sum(op.seconds or 0.0 for op in model.comms)
    if total and waited > 0.5 * total:
        share = round(100 * waited / total)
        notes.append(f"{share} % of the time in collectives is waiting for other ranks, estimated")
    if model.links.machine is None:
        device = model.traces[0].device or "the device"
        notes.append(f"{device} is not in the catalogue: links unknown")
    return notes


def _job_notes(job: JobReplay, recorded: StepRun) -> list[str]:
    shown = job.waited.sum(axis=1)
    found = job.waits(recorded).sum(axis=1)
    wrong = max(
        (abs(mine / trace - 1) for mine, trace in zip(found, shown, strict=True) if trace > 1e-4),
        default=0.0,
    )
    count, joined = len(job.calls), len(job.calls[0])
    text = f"{count} ranks joined by {joined} collectives; what each waits for the others is "
    return [f"{text}within {100 * wrong:.1f} % of the traces"]


def errors_of(replays: Sequence[Replay]) -> tuple[float, float]:
    """Return the median and the largest error of some replays."""
    found = [abs(each.error) for each in replays]
    return float(np.median(found)), max(found)
