"""What if, for several ranks of one job: each change is made on all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.trace import Trace, read
from weft.trace.reading import jobs_of
from weft.whatif.answer import Answer, Base, Outcome, answer_of, changes
from weft.whatif.change import Variant, scaling_of
from weft.whatif.job import job_of, straggler, together, without_straggler
from weft.whatif.replay import doubt, require_close
from weft.whatif.scene import Comm, Ground, Scene
from weft.whatif.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from weft.hardware import Platform
    from weft.trace.align import AlignedJob
    from weft.whatif.change import Change
    from weft.whatif.job import Together
    from weft.whatif.recorded import Recording
    from weft.whatif.replay import Replay
    from weft.whatif.stage import Run

NO_STRAGGLER = "no-straggler"


def what_if_jobs(
    traces: Sequence[Trace | Path | str],
    names: Sequence[str] = (),
    *,
    on: Platform | None = None,
    anyway: bool = False,
) -> list[Answer]:
    """Answer for each job among traces; its ranks are replayed together where they meet.

    A replay that is more than ``MOST_ERROR`` off raises a ReplayError, unless ``anyway``.
    """
    require_known(names)
    jobs, _ = jobs_of(_read(traces))
    return [answer for job in jobs for answer in answers_of(job, names, on, anyway=anyway)]


def answers_of(
    job: AlignedJob, names: Sequence[str], on: Platform | None = None, *, anyway: bool = False
) -> list[Answer]:
    """Answer for a job as a whole where its ranks meet, else for each rank by itself."""
    if not job.matches:
        return [answer_of(ranked, names, on, anyway=anyway) for ranked in job.ranks]
    joined = together(job)
    if joined.calls[0]:
        return [_answer(joined, names, on, anyway=anyway)]
    note = "replayed by itself: no collective of the step says when the other ranks came to it"
    alone = (answer_of(ranked, names, on, anyway=anyway) for ranked in job.ranks)
    return [replace(answer, notes=(note, *answer.notes)) for answer in alone]


def _read(traces: Sequence[Trace | Path | str]) -> list[Trace]:
    return [each if isinstance(each, Trace) else read(each) for each in traces]


def require_known(names: Sequence[str]) -> None:
    """Refuse names of no change, before anything is replayed."""
    for name in names:
        if name != NO_STRAGGLER:
            scaling_of(name)


def what_if_job(
    traces: Sequence[Trace | Path | str],
    names: Sequence[str] = (),
    *,
    on: Platform | None = None,
    anyway: bool = False,
) -> Answer:
    """Replay the ranks of a job together, then with each change; the slowest rank counts."""
    return _answer(together(job_of(_read(traces))), names, on, anyway=anyway)


def _answer(
    job: Together, names: Sequence[str], on: Platform | None, *, anyway: bool = False
) -> Answer:
    run = job.run()
    replays = job.replays(run)
    path = ", ".join(trace.path for trace in job.traces)
    if not anyway:
        require_close(path, replays)
    measured = max(job.means)
    chosen = max(each.measured for each in replays)
    base = Base(run.step, run.step * measured / chosen, replays)
    runs: dict[str, Run] = {"": run}
    outcomes, missing = [], list[str]()
    late = straggler(job, run)
    if not names or NO_STRAGGLER in names:
        outcome, runs[NO_STRAGGLER] = _no_straggler(job, late, run, base)
        outcomes.append(outcome)
    wanted = [name for name in names if name != NO_STRAGGLER]
    if wanted or on is not None or not names:
        found, missing = _changes(job, replays, wanted, on)
        for each in found:
            outcome, runs[each[0].name] = _outcome(job, each, base)
            outcomes.append(outcome)
    return Answer(
        file=path,
        rank=None,
        replays=replays,
        measured_step=measured,
        replayed_step=base.mean,
        outcomes=tuple(outcomes),
        notes=(*_notes(job, run), *missing),
        doubt=doubt(replays),
        straggler=job.traces[late].rank,
        runs=runs,
    )


def _changes(
    job: Together, replays: tuple[Replay, ...], names: Sequence[str], on: Platform | None
) -> tuple[list[tuple[Change, ...]], list[str]]:
    """Make the changes that change something on some rank; the others stay as they are."""
    scenes = [_scene(job, rank, replays) for rank in range(len(job.traces))]
    found, missing = zip(*(changes(scene, names, on) for scene in scenes), strict=True)
    made = [{each.name: each for each in mine} for mine in found]
    whole = {name: one for mine in made for name, one in mine.items()}
    every = [
        tuple(
            mine.get(name) or _unchanged(scene, one)
            for mine, scene in zip(made, scenes, strict=True)
        )
        for name, one in whole.items()
    ]
    nowhere = set(missing[0]).intersection(*missing)
    return every, [note for note in missing[0] if note in nowhere]


def _unchanged(scene: Scene, other: Change) -> Change:
    """Return the step as it is, as what ``other`` is on another rank."""
    value = Variant(scene.recording)
    return replace(other, value=value, ends=(value,) * len(other.ends))


def _no_straggler(job: Together, rank: int, now: Run, base: Base) -> tuple[Outcome, Run]:
    run = job.run(without_straggler(job, rank))
    before, after = job.waits(now).sum(), job.waits(run).sum()
    why = f"rank {job.traces[rank].rank} comes to no collective later than the last of the others:"
    why += f" all ranks wait {after * 1e3:.1f} ms in sum, not {before * 1e3:.1f}"
    return Outcome.of(NO_STRAGGLER, why, [run.step], base), run


def _scene(job: Together, rank: int, replays: tuple[Replay, ...]) -> Scene:
    """Give one rank; what it waited is no part of its collectives here."""
    recording = job.recordings[rank]
    comms = tuple(
        Comm(call, recording.collectives[call], moved := float(recording.seconds[call]), moved)
        for call in job.calls[rank]
    )
    ready = replace(job.ready[rank], recording=recording)
    return Scene(Ground(job.traces[rank], ready, job.machine), replays, comms)


def _outcome(job: Together, each: Sequence[Change], base: Base) -> tuple[Outcome, Run]:
    """Let a job run with one change, which ``each`` is on its ranks."""
    name, why = each[0].name, each[0].why
    first = frozenset[str]().union(*(one.value.first for one in each))
    recordings = [one.value.recording for one in each]
    if name in ("no-waiting", "no-communication"):  # nobody meets anybody
        recordings = [replace(recording, collectives={}) for recording in recordings]
    run = _run(job, recordings, first)
    ends = zip(*(one.ends for one in each), strict=False)
    steps = [_run(job, [one.recording for one in end], first).step for end in ends]
    return Outcome.of(name, why, [run.step, *steps], base), run


def _run(job: Together, recordings: Sequence[Recording], first: frozenset[str]) -> Run:
    return Stage(recordings, job.machine, job.iterations).run(first=first)


def _notes(job: Together, base: Run) -> list[str]:
    waited = job.waited.sum(axis=1)
    found = job.waits(base).sum(axis=1)
    wrong = max(
        (abs(mine / shown - 1) for mine, shown in zip(found, waited, strict=True) if shown > 1e-4),
        default=0.0,
    )
    count, joined = len(job.traces), len(job.calls[0])
    text = f"{count} ranks joined by {joined} collectives; what each waits for the others is "
    return [f"{text}within {100 * wrong:.1f} % of the traces"]
