"""A plan for a recorded step: equal collectives together, each by the change that saves most.

Changes are those of ``weft whatif``, made to one group of collectives at a time, the longest
first, on the step as the choices before left it. What reorders the step is not among them.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgspec

from weft.planner.coded_candidates import ERRORS
from weft.planner.plan import Alternative, Choice, Limits, Plan
from weft.planner.planning import check_limits
from weft.schedule.strategies import STRATEGIES
from weft.trace import Trace
from weft.trace.align import RankTrace
from weft.units import format_size, format_time
from weft.whatif.change import change
from weft.whatif.elsewhere import elsewhere
from weft.whatif.job import job_of
from weft.whatif.replay import doubt, require_close
from weft.whatif.scene import Ground, scene_of, slowest_scene
from weft.workload.step import COLLECTIVES, Collective

if TYPE_CHECKING:
    from collections.abc import Sequence

    from weft.hardware import Platform
    from weft.whatif.change import Change
    from weft.whatif.recorded import Recording
    from weft.whatif.scene import Comm, Scene

_TRIED = (
    *("concurrent", "priority", "partition", "priority+partition", "dma", "dma+partition"),
    *("fused", "compressed", "compressed-int8"),
)
_MOST = 8  # groups that are planned; what remains is little
_BETTER = 1 - 1e-3


@dataclass(frozen=True, slots=True)
class _State:
    """The step as chosen so far."""

    scene: Scene
    first: frozenset[str]
    step: float


def plan_trace(
    traces: Trace | Sequence[Trace],
    *,
    on: Platform | None = None,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    anyway: bool = False,
) -> Plan:
    """Plan the typical step of one rank's trace, on its own machine or on another.

    Of several traces of one job the slowest rank is planned; the others tell what it waited for.
    A replay that is more than ``MOST_ERROR`` off raises a ReplayError, unless ``anyway``.
    """
    check_limits(limits)
    given = [traces] if isinstance(traces, Trace) else list(traces)
    scene = scene_of(RankTrace.of(given[0])) if len(given) == 1 else slowest_scene(job_of(given))
    trace = scene.ground.trace
    if not anyway:
        require_close(trace.path, scene.replays)
    if on is not None:
        scene = _moved(scene, on)
    base = scene.ground.stage.run([scene.recording]).step
    state, choices = _State(scene, frozenset(), base), []
    for comms in _groups(scene):
        choice, state = _choose(state, comms, base, limits)
        choices.append(choice)
    spread = max(abs(each.error) for each in scene.replays)
    ranks = max((comm.what.num_ranks or 1 for comm in scene.comms), default=1)
    return Plan(
        workload=trace.path,
        platform=scene.ground.machine.name,
        num_ranks=ranks,
        choices=tuple(choices),
        baseline=base,
        planned=state.step,
        low=state.step * (1 - spread),
        high=state.step * (1 + spread),
        fingerprint=_fingerprint(scene),
        budget=limits,
        mode="search",
        notes=_notes(scene, given, spread),
    )


def _notes(scene: Scene, traces: Sequence[Trace], spread: float) -> tuple[str, ...]:
    notes = [f"the replay is within {100 * spread:.1f} % of what was measured"]
    why = doubt(scene.replays)
    if why:
        notes.insert(0, f"unreliable: {why}")
    if len(traces) > 1:
        notes.append(
            f"rank {scene.ground.trace.rank}, the slowest of {len(traces)}; what it waits for the "
            "others stays"
        )
    return tuple(notes)


def _moved(scene: Scene, on: Platform) -> Scene:
    """Give the scene on another machine."""
    recording = elsewhere(scene, on).value.recording
    comms = tuple(
        replace(comm, seconds=own, moved=max(0.0, own - comm.waited))
        for comm in scene.comms
        for own in (float(recording.seconds[comm.call]),)
    )
    return replace(scene, ground=_laid(scene, recording, on), comms=comms)


def _groups(scene: Scene) -> list[tuple[Comm, ...]]:
    """Put equal collectives together, those first that take longest."""
    found: dict[tuple[object, ...], list[Comm]] = defaultdict(list)
    for comm in scene.comms:
        found[comm.what.kind, comm.what.nbytes, comm.what.num_ranks].append(comm)
    order = sorted(found.values(), key=lambda comms: -sum(comm.moved for comm in comms))
    return [tuple(comms) for comms in order[:_MOST]]


def _choose(
    state: _State, comms: tuple[Comm, ...], base: float, limits: Limits
) -> tuple[Choice, _State]:
    """Try every change on one group of collectives, and keep the best."""
    calls = {comm.call for comm in comms}
    mine = tuple(comm for comm in state.scene.comms if comm.call in calls)
    part = replace(state.scene, comms=mine)
    found: dict[str, tuple[Change, float]] = {}
    others: list[Alternative] = []
    for name in _TRIED:
        refusal = _refused(name, limits)
        made = None if refusal else change(part, name)
        if made is None:
            why = refusal or "no such collective, group and device is known"
            others.append(Alternative(_strategy(name), _settings(name), None, why))
            continue
        first = state.first | made.value.first
        step = state.scene.ground.stage.run([made.value.recording], first).step
        found[name] = made, step
    best = min(found, key=lambda name: found[name][1], default="concurrent")
    if found and found[best][1] > state.step * _BETTER:
        best = "concurrent"
    step = found[best][1] if best in found else state.step
    others = [
        Alternative(_strategy(name), _settings(name), each, _not(each, step))
        for name, (_, each) in sorted(found.items(), key=lambda item: item[1][1])
        if name != best
    ] + others
    why = "as recorded: nothing that was tried saves more than a thousandth"
    after = state
    if best != "concurrent":
        made = found[best][0]
        why = made.why
        after = _State(_changed(state.scene, made), state.first | made.value.first, step)
    return _choice(mine, best, step, state.step, base, why, tuple(others)), after


def _changed(scene: Scene, made: Change) -> Scene:
    recording = made.value.recording
    comms = tuple(
        replace(comm, seconds=own, moved=min(comm.moved, own))
        for comm in scene.comms
        for own in (float(recording.seconds[comm.call]),)
    )
    return replace(scene, ground=_laid(scene, recording, scene.ground.machine), comms=comms)


def _laid(scene: Scene, recording: Recording, machine: Platform) -> Ground:
    """Give the step of a scene with what was changed in it."""
    ready = replace(scene.ground.ready, recording=recording)
    return Ground(scene.ground.trace, ready, machine)


def _refused(name: str, limits: Limits) -> str:
    if name == "compressed-int8" and limits.error < ERRORS["int8"]:
        return f"its error of {ERRORS['int8']:g} is above the budget of {limits.error:g}"
    if name in STRATEGIES and STRATEGIES[name].by_engines and limits.engines == 0:
        return "no engines are allowed"
    return ""


def _strategy(name: str) -> str:
    return name.partition("-")[0]


def _settings(name: str) -> dict[str, str | int | float]:
    if name.startswith("compressed"):
        return {"codec": "int8" if name.endswith("int8") else "pack"}
    return {}


def _not(step: float, chosen: float) -> str:
    return f"the step takes {format_time(step)}, not {format_time(chosen)}"


def _choice(
    comms: tuple[Comm, ...],
    name: str,
    step: float,
    before: float,
    base: float,
    why: str,
    others: tuple[Alternative, ...],
) -> Choice:
    what, total = comms[0].what, sum(comm.moved for comm in comms)
    kind = what.kind if what.kind in COLLECTIVES else "all_reduce"
    size = what.nbytes or 0
    return Choice(
        pair=f"{what.kind} {format_size(size)}",
        op=comms[0].call,
        collective=Collective(kind, size, what.dtype or "", f"{what.num_ranks or 1} ranks"),
        strategy=_strategy(name),
        settings=_settings(name),
        seconds=total / len(comms),
        low=0.0,
        high=max(comm.seconds for comm in comms),
        gain=max(0.0, before - step) / base if base else 0.0,
        why=why,
        alternatives=others,
        ops=tuple(comm.call for comm in comms),
    )


def _fingerprint(scene: Scene) -> str:
    """Name the step by its collectives in order, and the machine."""
    ops = [(c.what.kind, c.what.nbytes, c.what.num_ranks) for c in scene.comms]
    parts = (msgspec.json.encode(each) for each in (ops, scene.ground.machine.name))
    return "-".join(hashlib.sha256(part).hexdigest()[:16] for part in parts)
