"""One step on one platform, laid out once and run again and again.

Laying out fixes what does not change: which op stands behind which, on which stream, and with
whom it meets. A run fills in durations and demands, so a search over strategies pays for the
native simulation alone. Ops share the units, memory and caches of their device; how much longer
they take next to each other comes out of that.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from weft import _core
from weft.errors import WorkloadError
from weft.step.columns import AloneColumns, ContendedColumns, Dispatch
from weft.step.demands import Flow, OpDemands, TransferResource
from weft.step.durations import SHORTEST, Execution, host_of, seconds_of
from weft.step.layout import StepLayout
from weft.step.matching import match_collectives
from weft.step.run import StepRun

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from weft.hardware import Platform
    from weft.step import HostModel, Op, PriceSource, StepGraph
    from weft.step.layout import Place

    Floats = NDArray[np.float64]


# A fixed-point iteration: ops that share a resource depend on each other's durations, so a round
# changes an op by a bounded factor, and the best round is kept.
_ROUNDS = 12  # of dividing contention out of recorded durations, at most
_CLOSE = 1e-4  # share of the recorded time that may be left unexplained
_MOST = 2.0  # times by which a round changes an op


class StepEngine:
    """One step on one platform, to be run with several executions of its collectives."""

    def __init__(
        self,
        graph: StepGraph,
        platform: Platform,
        prices: PriceSource,
        *,
        host: HostModel | None = None,
        period: Callable[[StepRun], float] | None = None,
    ) -> None:
        """Lay the step out; ``period`` says what a run of several iterations takes."""
        self.graph, self.platform, self.period = graph, platform, period
        self.device = platform.require_device()
        self.met = match_collectives(graph, platform.node_size)
        self.demands = OpDemands(platform)
        self._crossing: dict[int, bool] = {}
        self._flows: dict[object, tuple[Flow, TransferResource]] = {}
        self.seconds = self._priced(prices)
        self.layout = StepLayout(graph, self.device, host or host_of(platform), self.met)

    def run(
        self,
        executions: Mapping[Place, Execution] | None = None,
        seconds: Mapping[Place, float] | None = None,
        *,
        pressure: float = 1.0,
    ) -> StepRun:
        """Run the step with other executions of its collectives and durations of its kernels.

        ``pressure`` multiplies the units that collectives hold; 0 runs every op as if alone.
        """
        contended = pressure > 0 and self._contends
        base: ContendedColumns | AloneColumns = self._contended if contended else self._alone
        return self._simulated(base.changed(self, executions or {}, seconds or {}, pressure))

    def _simulated(self, columns: dict[str, Any]) -> StepRun:
        start, end = (np.full(len(self.layout.rows.step), np.nan) for _ in range(2))
        _core.simulate(columns, self.layout.num_flags, 0.0, start, end)
        # A recorded pause of the stream is simulated as part of the op behind it; the op starts
        # after.
        start[list(self.layout.pauses)] += list(self.layout.pauses.values())
        if np.isnan(end).any():
            raise WorkloadError(
                f"{self.graph.name}: ranks wait for each other and none can go on",
                "Collectives of the same ranks must come in the same order on all of them.",
            )
        return StepRun(self, start, end)

    def decontended(
        self, expected: Mapping[Place, float] | None = None, *, waiting_is_known: bool = False
    ) -> StepEngine:
        """Return the step with shorter durations, such that a run takes those of this engine.

        Recorded durations contain what contention did to them. Starting from what ops are
        ``expected`` to take alone, by default all of it, each round divides out what a run takes
        too much. Unless ``waiting_is_known``, what contention explains of a collective's waiting
        is taken off it. Where memory or links are saturated several durations explain what was
        recorded; the one nearest the expected is found.
        """
        if not self._contends:
            return self
        recorded = {place: self.own(took) for place, took in self.seconds.items()}
        known = {place: self.op(place).waiting for place in self.layout.waiting_row}
        waiting = {} if waiting_is_known else dict.fromkeys(known, 0.0)
        for place in waiting:
            # What a trace calls waiting may be contention: both are explained together, and what
            # contention leaves over is waiting.
            recorded[place] += known[place]
        alone = {
            place: min(self.own((expected or {}).get(place, took)), recorded[place])
            for place, took in self.seconds.items()
        }
        best, least = self, np.inf
        for _ in range(_ROUNDS):
            made = self._as_if(alone, known if waiting_is_known else waiting)
            run, off = made.run(), 0.0
            for place, took in recorded.items():
                length = run.length(place)
                off += abs(length + waiting.get(place, 0.0) - took)
                if length < took and place in waiting:
                    waiting[place] = took - length
                    continue
                waiting.pop(place, None)
                # Bounded both ways, and never longer than recorded: contention only adds.
                excess = min(max(length / took, 1 / _MOST), _MOST)
                alone[place] = min(alone[place] / excess, took)
            if off < least:
                best, least = made, off
            if off <= _CLOSE * sum(recorded.values()):
                break
        return best

    def _as_if(self, alone: Mapping[Place, float], waiting: Mapping[Place, float]) -> StepEngine:
        """Return the step with other durations alone, launches left out, and other waiting."""
        before = self.fixed["before"].copy()
        for place, row in self.layout.waiting_row.items():
            before[row] = waiting.get(place, 0.0)
        seconds = {place: self.device.launch + took for place, took in alone.items()}
        return self._with(seconds, before)

    def waiting(self, place: Place) -> float:
        """Return how long a collective waits for ranks that no trace shows."""
        row = self.layout.waiting_row.get(place)
        return 0.0 if row is None else float(self.fixed["before"][row])

    def _with(self, seconds: dict[Place, float], before: Floats) -> StepEngine:
        """Return the step with other durations of its ops and other delays before them."""
        # The layout and matches are shared; only columns that hold durations are built again.
        other = copy(self)
        for name in ("_alone", "_contended"):
            other.__dict__.pop(name, None)
        other.seconds = seconds
        other.__dict__["fixed"] = self.fixed | {"before": before}
        return other

    def dispatch_columns(
        self, seconds: Floats, executions: Mapping[Place, Execution]
    ) -> dict[str, Any]:
        """Return what kernels of many waves hold up; nothing where no kernel has several."""
        if not self._dispatch.matters:
            return {}
        engines = (self.layout.launch_row[p] for p, how in executions.items() if how.by_engines)
        return {"dispatch": self._dispatch.column(self, seconds, engines)}

    @cached_property
    def _dispatch(self) -> Dispatch:
        return Dispatch(self)

    def is_product(self, place: Place) -> bool:
        """Return whether an op is a product that runs in waves of tiles."""
        op = self.op(place)
        return op.kind == "kernel" and self.demands.is_product(op.cost)

    @cached_property
    def _contends(self) -> bool:
        """Whether ops may run at once: on several streams, and not where a rank is one core."""
        streams = (
            len({op.stream for op in step.ops if op.kind != "host"}) for step in self.graph.steps
        )
        return not self.device.is_core and max(streams, default=0) > 1

    def crosses_nodes(self, place: Place) -> bool:
        """Return whether the ranks of a collective are on several nodes."""
        ranks = self.met[place].ranks
        if id(ranks) not in self._crossing:  # equal groups share one tuple, which may be long
            size = self.platform.node_size
            self._crossing[id(ranks)] = len({rank // size for rank in ranks}) > 1
        return self._crossing[id(ranks)]

    def collective_flow(
        self, place: Place, how: Execution | None = None
    ) -> tuple[Flow, TransferResource]:
        """Return what a collective demands, by default as its library carries it out."""
        matched, how = self.met[place], how or Execution(self.seconds[place])
        key = matched.what, len(matched.ranks), self.crosses_nodes(place), how
        if key not in self._flows:
            self._flows[key] = self.demands.collective(
                matched.what,
                len(matched.ranks),
                self.own(how.seconds),
                units=how.units,
                by_engines=how.by_engines,
                between_nodes=self.crosses_nodes(place),
            )
        return self._flows[key]

    def port_rates(self) -> Floats:
        """Return what leaves a rank of each class inside its node and for others, at the most.

        That is the rate of the fastest collective alone: collectives that run at once share it.
        """
        rates = np.full(2 * len(self.graph.steps), 1.0)
        for place in self.layout.launch_row:
            flow, moved_by = self.collective_flow(place)
            port = 2 * place[0] + self.crosses_nodes(place)
            rates[port] = max(rates[port], moved_by.transfers * flow.cap)
        return rates

    def repriced(
        self, prices: PriceSource, recorded: float = 1.0, *, host: float = 1.0
    ) -> StepEngine:
        """Return the same step with other prices.

        Recorded durations are ``recorded`` times, and overheads of the host ``host`` times as long.
        """
        before = self.fixed["before"].copy()
        before[list(self.layout.issue_row.values())] *= host
        for place, row in self.layout.issue_row.items():
            op = self.op(place)
            if op.kind == "host" and op.seconds:
                before[row] += (recorded - 1) * op.seconds
        return self._with(self._priced(prices, recorded), before)

    def _priced(self, prices: PriceSource, recorded: float = 1.0) -> dict[Place, float]:
        """Return what each op takes alone."""
        return {
            (c, n): seconds_of(op, self.met.get((c, n)), prices)
            * (1.0 if op.seconds is None else recorded)
            for c, step in enumerate(self.graph.steps)
            for n, op in enumerate(step.ops)
            if op.kind != "host"
        }

    def op(self, place: Place) -> Op:
        """Return an op of the step."""
        return self.graph.steps[place[0]].ops[place[1]]

    def own(self, seconds: float) -> float:
        """Return the rest of a duration after its launch."""
        return max(seconds - self.device.launch, SHORTEST)

    @cached_property
    def fixed(self) -> dict[str, Any]:
        """The columns that no run changes."""
        return self.layout.columns()

    @cached_property
    def _alone(self) -> AloneColumns:
        return AloneColumns(self)

    @cached_property
    def _contended(self) -> ContendedColumns:
        return ContendedColumns(self)
