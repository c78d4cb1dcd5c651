"""What if, for several ranks of one job: each change is made on all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.whatif.answer import Answer, Outcome, changes
from weft.whatif.job import straggler, together, without_straggler
from weft.whatif.scene import Comm, Ground, Scene
from weft.whatif.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.hardware import Platform
    from weft.trace import Trace
    from weft.whatif.change import Change
    from weft.whatif.job import Together
    from weft.whatif.recorded import Recording
    from weft.whatif.replay import Replay
    from weft.whatif.stage import Run

NO_STRAGGLER = "no-straggler"


def what_if_job(
    traces: Sequence[Trace], names: Sequence[str] = (), *, on: Platform | None = None
) -> Answer:
    """Replay the ranks of a job together, then with each change; the slowest rank counts."""
    job = together(traces)
    base = job.run()
    replays = job.replays(base)
    slowest = max(range(len(replays)), key=lambda rank: replays[rank].measured)
    runs: dict[str, Run] = {"": base}
    outcomes, missing = [], list[str]()
    if not names or NO_STRAGGLER in names:
        outcomes.append(_no_straggler(job, base, replays, runs))
    wanted = [name for name in names if name != NO_STRAGGLER]
    if wanted or not names:
        scenes = [_scene(job, rank, replays) for rank in range(len(job.traces))]
        made = [changes(scene, wanted, on, missing) for scene in scenes]
        shared = set.intersection(*({each.name for each in found} for found in made))
        for change in (each for each in made[0] if each.name in shared):
            each = [next(c for c in found if c.name == change.name) for found in made]
            outcomes.append(_outcome(job, change, each, base.step, replays, runs))
    return Answer(
        file=", ".join(trace.path for trace in job.traces),
        rank=None,
        replays=replays,
        measured_step=replays[slowest].measured,
        replayed_step=base.step,
        outcomes=tuple(outcomes),
        notes=(*_notes(job, base), *dict.fromkeys(missing)),
        runs=runs,
    )


def _no_straggler(
    job: Together, base: Run, replays: Sequence[Replay], runs: dict[str, Run]
) -> Outcome:
    rank = straggler(job, base)
    run = job.run(without_straggler(job, rank))
    runs[NO_STRAGGLER] = run
    before, after = job.waits(base).sum(), job.waits(run).sum()
    why = f"rank {job.traces[rank].rank} comes to no collective later than the last of the others:"
    why += f" all ranks wait {after * 1e3:.1f} ms in sum, not {before * 1e3:.1f}"
    return Outcome.of(NO_STRAGGLER, why, [run.step], base.step, replays)


def _scene(job: Together, rank: int, replays: tuple[Replay, ...]) -> Scene:
    """Give one rank; what it waited is no part of its collectives here."""
    recording = job.recordings[rank]
    comms = tuple(
        Comm(call, recording.collectives[call], moved := float(recording.seconds[call]), moved)
        for call in job.calls[rank]
    )
    ready = replace(job.ready[rank], recording=recording)
    return Scene(Ground(job.traces[rank], ready, job.machine), replays, comms)


def _outcome(
    job: Together,
    change: Change,
    each: Sequence[Change],
    base: float,
    replays: Sequence[Replay],
    runs: dict[str, Run],
) -> Outcome:
    first = frozenset[str]().union(*(one.value.first for one in each))
    recordings = [one.value.recording for one in each]
    if change.name in ("no-waiting", "no-communication"):  # nobody meets anybody
        recordings = [replace(recording, collectives={}) for recording in recordings]
    runs[change.name] = _run(job, recordings, first)
    steps = [runs[change.name].step]
    steps += [
        _run(job, [one.ends[end].recording for one in each], first).step
        for end in range(len(change.ends))
    ]
    return Outcome.of(change.name, change.why, steps, base, replays)


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
