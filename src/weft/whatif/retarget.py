"""A recorded step on other hardware: kernels by the prices of both devices, links by their curves.

Kernels take what they took, times the ratio of both devices' prices; collectives what the links of
the other machine need, and the waiting for other ranks that the trace shows. The host is the
recorded one.
"""

from dataclasses import replace

import numpy as np

from weft.hardware import Platform
from weft.planner.predict import Prediction, predict
from weft.step import NO_HOST, StepRun
from weft.trace import Trace
from weft.trace.analysis.align import RankTrace
from weft.trace.analysis.machine_links import MachineLinks
from weft.trace.recorded.costs import scales
from weft.trace.recorded.recorded_step import RecordedStep, graph_of
from weft.whatif.change import Change
from weft.whatif.model import ReplayModel, model_of
from weft.whatif.replay import replay_engine, replay_machine, require_close


def retargeted(model: ReplayModel, on: Platform, end: int = 0) -> ReplayModel:
    """Return the model on another machine; ``end`` 1 and 2 are the ends of its prices' range."""
    here, there, links = model.machine.require_device(), on.require_device(), MachineLinks(on)
    ranks = []
    for trace, rank in zip(model.traces, model.ranks, strict=True):
        found = scales(trace, rank.calls, here, there)
        seconds = rank.seconds * np.array([each[end] for each in found])
        for call, what in rank.collectives.items():
            now, then = (
                each.seconds(what.kind, what.nbytes, what.num_ranks, what.dtype)
                for each in (model.links, links)
            )
            waited = rank.waited.get(call, 0.0)
            moved = float(rank.seconds[call]) - waited
            seconds[call] = waited + (moved * then / now if now and then else moved)
        ranks.append(replace(rank, seconds=seconds))
    return replace(model, ranks=tuple(ranks), machine=on, links=links)


def on_machine(model: ReplayModel, on: Platform) -> Change:
    """Move a step to another machine; its host and its waiting for other ranks stay."""
    here, there = model.machine.require_device(), on.require_device()
    value, *ends = (_replayed(retargeted(model, on, end)) for end in range(3))
    why = f"kernels by the prices of {here.name} and {there.name}, collectives by their links; "
    why += "the same host and the same waiting"
    return Change(f"on {on.name}", why, value, tuple(ends), against=_replayed(model))


def _replayed(model: ReplayModel) -> StepRun:
    return replay_engine(model.ranks, model.machine).run(pressure=0)


def predict_trace(trace: Trace, on: Platform, *, anyway: bool = False) -> Prediction:
    """Predict the typical step of one rank's trace on another machine.

    The error of the replay widens the range. If it exceeds ``MOST_ERROR``, raise a ReplayError,
    unless ``anyway``.
    """
    model = model_of(RankTrace.of(trace))
    if not anyway:
        require_close(trace.path, model.replays)
    moved = [retargeted(model, on, end) for end in range(3)]
    ranks = moved[0].ranks
    machine = replay_machine(on, ranks[0].overheads.gap, ranks)
    step = graph_of(trace.path, ranks, on.require_device())
    made = predict(step, machine, host=NO_HOST, anyway=True)
    seconds = [_period(each.ranks[0], on) for each in moved]
    off = max(abs(each.error) for each in model.replays)
    low, high = min(seconds) * (1 - off), max(seconds) * (1 + off)
    return replace(made, platform=on, low=low, high=high, period=seconds[0])


def _period(rank: RecordedStep, on: Platform) -> float:
    """Return the seconds from one step to the next; one recorded alone ends before the next."""
    run = replay_engine([rank], on).run(pressure=0)
    return run.seconds if rank.held_out else run.makespan
