"""The step of a trace as a model: a workload that can be changed and run again.

Recorded durations contain what contention did to them. The model divides it out, so that a run
with a change, on the same engine, shares the device anew: a strategy does to a recorded step what
it does to a generated one.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

import numpy as np

from weft.cost import price
from weft.errors import WeftError
from weft.hardware import Device, Platform
from weft.planner.candidates import Candidate
from weft.planner.evaluation import StepEvaluator
from weft.planner.plan import Limits
from weft.planner.planning import DraftPlan, drafted_step
from weft.planner.prices import Prices, default_library
from weft.schedule import Cost
from weft.step import Collective, Op, StepEngine, StepGraph, StepRun
from weft.step.layout import Place
from weft.trace import Trace
from weft.trace import TracedCollective as RecordedCollective
from weft.trace.analysis.align import AlignedJob, RankTrace, align
from weft.trace.analysis.machine_links import MachineLinks, links_of, sized
from weft.trace.analysis.steps import steps_of
from weft.trace.analysis.waiting import TransferWindow, moving
from weft.trace.recorded.costs import costs_of
from weft.trace.recorded.overheads import HostOverheads
from weft.trace.recorded.recorded_step import RecordedStep, graph_of
from weft.whatif.replay import (
    Replay,
    iterations_of,
    machine_of,
    recorded_steps,
    replay_engine,
    replays_of,
)

_ROOM = 1 << 62  # bytes of memory that a strategy may take: a trace does not tell what is free


@dataclass(frozen=True)
class ReplayModel:
    """The same step of one recorded rank, or of several ranks of one job, on a machine."""

    traces: tuple[Trace, ...]
    ranks: tuple[RecordedStep, ...]
    machine: Platform
    links: MachineLinks
    replays: tuple[Replay, ...]

    @property
    def name(self) -> str:
        """The files that it was recorded in."""
        return ", ".join(trace.path for trace in self.traces)

    @cached_property
    def graph(self) -> StepGraph:
        """One iteration, with what each op takes alone."""
        ranks = [replace(r, overheads=_contended(r.overheads)) for r in self.ranks]
        recorded = graph_of(self.name, ranks, self.machine.require_device())
        engine = replay_engine(ranks, self.machine, recorded)
        known = all(rank.waited_is_known for rank in self.ranks)
        alone = engine.decontended(self._expected(engine), waiting_is_known=known)
        last = iterations_of(self.ranks) - 1

        def updated(place: Place, op: Op) -> Op:
            if op.kind == "host":
                return op
            rank, number = place
            # The last iteration, behind the one op that delays a late rank: the first starts on an
            # idle device.
            there = rank, 1 + last * len(recorded.steps[rank].ops) + number
            return replace(op, seconds=alone.seconds[there], waiting=alone.waiting(there))

        return _mapped(recorded, updated)

    def _expected(self, engine: StepEngine) -> dict[Place, float]:
        """Return what the cost models say of ops that the trace describes in full."""
        device = self.machine.require_device()
        known = dict[object, float]()
        found = {}
        for place in engine.layout.row:
            op = engine.op(place)
            what: object = op.collective or op.cost
            if what not in known:
                if op.collective is not None:
                    known[what] = self.price(op.collective, len(engine.met[place].ranks)) or 0.0
                else:
                    known[what] = _kernel_price(op.cost, device)
            if known[what]:
                found[place] = known[what]
        return found

    def engine_of(self, graph: StepGraph) -> StepEngine:
        """Lay out a changed workload."""
        return replay_engine(self.ranks, self.machine, graph)

    @cached_property
    def engine(self) -> StepEngine:
        """The step unchanged, laid out."""
        return self.engine_of(self.graph)

    @cached_property
    def run(self) -> StepRun:
        """The step unchanged, simulated: what changes are compared with."""
        return self.engine.run()

    @property
    def comms(self) -> list[Op]:
        """The collectives of all ranks."""
        return [op for op in self.graph.ops() if op.collective is not None]

    def edited(self, edit: Callable[[Op], Op], of: StepGraph | None = None) -> StepGraph:
        """Return the workload with every op replaced by what ``edit`` makes of it."""
        graph = of or self.graph
        return _mapped(graph, lambda _place, op: edit(op))

    @cached_property
    def if_all_moved(self) -> StepGraph | None:
        """The step as if no collective had waited for another rank; None where none did."""
        if not any(op.waiting for op in self.comms):
            return None

        def moved(op: Op) -> Op:
            return replace(op, seconds=(op.seconds or 0.0) + op.waiting, waiting=0.0)

        return self.edited(lambda op: moved(op) if op.waiting else op)

    @cached_property
    def prices(self) -> Prices:
        """Prices on as many ranks as the largest group has."""
        machine = sized(self.machine, self.graph.num_ranks)
        return Prices(machine, default_library(machine))

    def price(self, what: Collective, num_ranks: int | None = None) -> float | None:
        """Return the seconds of a collective alone; None where nothing is known of it."""
        count = num_ranks or self.graph.group(what.group).size
        if what.kind == "barrier":
            return None
        return self.links.seconds(what.kind, what.nbytes, count, what.dtype)

    def draft(self, limits: Limits) -> DraftPlan:
        """List the candidates of every group of equal collectives, once for equal limits."""
        if limits not in self._drafts:
            self._drafts[limits] = drafted_step(self.engine, self.prices, limits, _ROOM)
        return self._drafts[limits]

    @cached_property
    def _drafts(self) -> dict[Limits, DraftPlan]:
        return {}

    def run_moved(self, draft: DraftPlan, chosen: Sequence[Candidate]) -> StepRun | None:
        """Run chosen candidates as if no collective had waited; None where none did."""
        if self.if_all_moved is None:
            return None
        groups = (each.group for each in draft.search.options)
        return self._moved_evaluator.run(list(zip(groups, chosen, strict=True)))

    @cached_property
    def _moved_evaluator(self) -> StepEvaluator:
        assert self.if_all_moved is not None
        return StepEvaluator(self.engine_of(self.if_all_moved), self.prices)


def _contended(overheads: HostOverheads) -> HostOverheads:
    """Return overheads without the pauses that a contended simulation makes by itself."""
    return replace(overheads, pauses=overheads.pauses - overheads.behind_products)


def _mapped(graph: StepGraph, edit: Callable[[Place, Op], Op]) -> StepGraph:
    """Return the workload with every op replaced by what ``edit`` makes of it."""
    steps = (
        replace(step, ops=tuple(edit((c, n), op) for n, op in enumerate(step.ops)))
        for c, step in enumerate(graph.steps)
    )
    return replace(graph, steps=tuple(steps))


def _kernel_price(cost: Cost | None, device: Device) -> float:
    """Return the seconds of a kernel whose shape is known; 0 for others."""
    if cost is None or not cost.shape:
        return 0.0
    try:
        # Recorded workgroups say how a kernel fills a device, not what it costs.
        return price(replace(cost, tiles=1), device).seconds
    except WeftError:
        return 0.0


def model_of(
    ranked: RankTrace, moved: Mapping[RecordedCollective, float] | None = None
) -> ReplayModel:
    """Replay the steps of one rank's trace and return the typical one as a model.

    ``moved`` says how long collectives moved bytes, where several ranks tell; else it is estimated.
    """
    trace, machine = ranked.trace, machine_of(ranked.trace)
    steps = recorded_steps(ranked)
    replays = tuple(replays_of(steps, machine))
    step = steps[typical(steps)]
    known = moved is not None
    moved = _moved(ranked, step.overheads.gap) if moved is None else moved
    waited = {
        call: max(0.0, float(step.seconds[call]) - moved[what])
        for call, what in step.collectives.items()
        if step.calls.row[call] >= 0
    }
    costs = costs_of(trace, step.calls)
    step = replace(step, waited=waited, waited_is_known=known, costs=costs)
    return ReplayModel((trace,), (step,), machine, links_of(trace.device), replays)


def slowest_model(job: AlignedJob) -> ReplayModel:
    """Return the rank of a job whose steps take longest, with what all ranks tell of moving."""
    steps = [steps_of(ranked.trace) for ranked in job.ranks]
    found = moving(job, steps, links_of(job.ranks[0].trace.device))
    models = [
        model_of(ranked, _seconds(ranked, mine))
        for ranked, mine in zip(job.ranks, found, strict=True)
    ]
    # The slowest rank is the one that the others wait for: what shortens it shortens the job.
    return max(models, key=lambda model: fmean(each.measured for each in model.replays))


def typical(steps: Sequence[RecordedStep]) -> int:
    """Return the number of the step that is nearest the mean: its period and its collectives.

    What a change saves depends on how long collectives take, which varies with who is late.
    """
    about = np.array([(each.measured, _communicates(each)) for each in steps])
    mean = about.mean(axis=0)
    # Relative distances, so that the period and the time of collectives weigh alike.
    apart = np.abs(about - mean) / np.where(mean > 0, mean, 1.0)
    return int(apart.sum(axis=1).argmin())


def _communicates(step: RecordedStep) -> float:
    """Return how long the collectives of a step take, in sum."""
    calls = [call for call in step.collectives if step.calls.row[call] >= 0]
    return float(step.seconds[calls].sum())


def _moved(ranked: RankTrace, gap: float) -> dict[RecordedCollective, float]:
    """Estimate how long each collective moved bytes; one of which nothing tells did all the time.

    A price contains the launch, which a kernel's duration does not.
    """
    steps = steps_of(ranked.trace)
    (found,) = moving(align([ranked]), [steps], links_of(ranked.trace.device))
    return {what: max(0.0, took - gap) for what, took in _seconds(ranked, found).items()}


def _seconds(
    ranked: RankTrace, found: Sequence[TransferWindow | None]
) -> dict[RecordedCollective, float]:
    seconds = (np.inf if each is None else each.seconds for each in found)
    return dict(zip(ranked.collectives, seconds, strict=True))
