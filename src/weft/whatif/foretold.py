"""A recorded step as a workload of another machine, predicted like any other.

Kernels take what they took, times the ratio of both devices' prices; collectives what the links
of the other machine need, and the waiting for other ranks that the trace shows. The host is the
recorded one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from weft.planner.predict import predict
from weft.trace.align import RankTrace
from weft.whatif.costs import families_of
from weft.whatif.elsewhere import elsewhere
from weft.whatif.recorded import workload_of
from weft.whatif.replay import iterations_of, require_close
from weft.whatif.scene import scene_of
from weft.whatif.stage import Stage, quiet_machine
from weft.workload import NO_HOST

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.planner.predict import Prediction
    from weft.trace import Trace
    from weft.whatif.recorded import Recording
    from weft.whatif.scene import Scene
    from weft.workload import Workload


def predict_trace(trace: Trace, on: Platform, *, anyway: bool = False) -> Prediction:
    """Predict the typical step of one rank's trace on another machine.

    What the replay of the trace is wrong by widens the range. One that is more than
    ``MOST_ERROR`` off raises a ReplayError, unless ``anyway``.
    """
    scene = scene_of(RankTrace.of(trace))
    if not anyway:
        require_close(trace.path, scene.replays)
    change = elsewhere(scene, on)
    recording = change.value.recording
    made = predict(
        recorded_workload(scene, recording, on),
        quiet_machine(on, recording.overheads.gap),
        host=NO_HOST,
        anyway=True,
    )
    number = iterations_of(scene.ground.ready)
    steps = [_period(each.recording, on, number) for each in (change.value, *change.ends)]
    off = max(abs(each.error) for each in scene.replays)
    low, high = min(steps) * (1 - off), max(steps) * (1 + off)
    return replace(made, platform=on, low=low, high=high, period=steps[0])


def _period(recording: Recording, on: Platform, iterations: int) -> float:
    """Give how far apart steps begin; one that was recorded alone ends before the next begins."""
    run = Stage([recording], on, iterations).run()
    return run.step if iterations > 1 else float(run.end.max())


def recorded_workload(scene: Scene, recording: Recording, on: Platform) -> Workload:
    """Give one iteration as a workload whose ops say what families they are of."""
    units = on.require_device().units
    made = workload_of(scene.ground.trace.path, [recording], units, 1)
    names = iter(families_of(scene.ground.trace, recording.calls))
    ops = tuple(
        replace(op, cost=replace(op.cost, family=next(names))) if op.cost is not None else op
        for op in made.steps[0].ops
    )
    return replace(made, steps=(replace(made.steps[0], ops=ops),))
