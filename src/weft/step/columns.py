"""Durations and demands of a step as columns of the native simulator."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.schedule import Cost
from weft.step.durations import Execution

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from weft.step.demands import Flow, GridTiles
    from weft.step.engine import StepEngine
    from weft.step.layout import Place

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

_NONE = 1e-300  # a demand of nothing: weights are positive
# A table has a number for each count of units, 305 on MI300X. Without tables, products ask as much
# of memory on fewer units as on all.
_MOST_TABLES = 20_000  # products for which traffic on fewer units is kept: some 20 MB


class Dispatch:
    """When workgroups of a recorded kernel let those of other streams in.

    A kernel of several waves keeps workgroups of later kernels from being dispatched until its
    last wave, unless their stream has a higher priority. Only traces tell the waves of kernels.
    """

    def __init__(self, engine: StepEngine) -> None:
        rows: list[int] = []
        flows: list[int] = []
        waves: list[float] = []
        units = engine.device.units
        for place, flow in engine.layout.row.items():
            op = engine.op(place)
            if op.kind != "copy":
                rows.append(engine.layout.launch_row.get(place, flow))
                flows.append(flow)
                # Tiles are the workgroups of a recorded launch; one a unit at a time makes a wave.
                waves.append(op.cost.tiles / units if op.cost else 0.0)
        self._rows, self._flows = np.array(rows, np.int64), np.array(flows, np.int64)
        self._waves = np.maximum(np.array(waves), 1.0)
        self.matters = bool((self._waves > 1).any())

    def column(self, engine: StepEngine, seconds: Floats, engines: Iterable[int]) -> Floats:
        """Return the column for flows of these ``seconds``; copy ``engines`` wait for no slot."""
        out = np.full(len(seconds), -1.0)
        # The last of w waves begins when (w - 1) / w of the kernel is over; only then do slots
        # come free for kernels behind it.
        held = engine.fixed["before"][self._rows] + seconds[self._flows] * (1 - 1 / self._waves)
        out[self._rows] = np.where(self._waves > 1, held, 0.0)
        out[list(engines)] = -1.0
        return out


class AloneColumns:
    """Every op takes its duration, whatever runs at the same time."""

    def __init__(self, engine: StepEngine) -> None:
        self._size = np.zeros(len(engine.fixed["step"]))
        for place, row in engine.layout.row.items():
            self._size[row] = engine.own(engine.seconds[place])

    def changed(
        self,
        engine: StepEngine,
        executions: Mapping[Place, Execution],
        seconds: Mapping[Place, float],
        _pressure: float,
    ) -> dict[str, Any]:
        """Return the columns of a run."""
        size, count = self._size.copy(), len(self._size)
        for place, took in seconds.items():
            size[engine.layout.row[place]] = engine.own(took)
        for place, how in executions.items():
            size[engine.layout.row[place]] = engine.own(how.seconds)
        columns = engine.fixed | {
            "size": size,
            "cap": np.ones(count),
            "units": np.zeros(count, np.int32),
            "capacity": np.ones(len(engine.graph.steps)),
            "demand_start": np.zeros(count + 1, np.int64),
            "demand_resource": np.empty(0, np.int32),
            "demand_weight": np.empty(0),
        }
        return columns | engine.dispatch_columns(size, executions)


def _transfer_key(engine: StepEngine, place: Place) -> tuple[object, ...]:
    """Return what tells collectives apart that may be carried out by different strategies.

    Equal ones behind different kernels may be: one fused with its producer, one not.
    """
    op, launch = engine.op(place), engine.layout.launch_row[place]
    # The last dependency is the kernel that produces the input of the collective.
    behind = engine.op((place[0], op.after[-1])).name if op.after else ""
    return int(engine.fixed["thread"][launch]), engine.met[place].what, op.phase, behind


class ContendedColumns:
    """Ops share the units, memory and caches of their device.

    Resources are units, memory and cache of each class of ranks, one that stands for none, ports
    inside and between nodes, then one for the transfers of equal collectives of a stream, which
    never run at once. Classes have no resource in common, so that the simulator solves each by
    itself. Every flow has three demands: memory, units or a port, and the cache or its transfers;
    so a run changes numbers, not places.
    """

    def __init__(self, engine: StepEngine) -> None:
        count, classes = len(engine.fixed["step"]), len(engine.graph.steps)
        device, self._classes = engine.device, classes
        self._size, self._cap = np.zeros(count), np.full(count, np.inf)
        self._own = np.zeros(count)  # seconds of flows alone
        self._units = np.zeros(count, np.int32)
        self._edge: dict[int, int] = {}  # first demand of a row
        self._transfer: dict[Place, tuple[int, int]] = {}  # and the port that it takes
        # One block of entries for each kind of resource, one entry a class: units, memory, cache,
        # nothing, then two ports a class.
        capacity = [float(device.units)] * classes + [device.memory_rate] * classes
        capacity += [device.kernels.l2_rate] * classes + [1.0] * classes + [0.0] * (2 * classes)
        # By resource: the memory and the cache whose load delays what passes it (`load_latency`).
        slowed = [(-1, -1)] * (6 * classes)
        self._ports = 4 * classes
        transfer_resources: dict[object, int] = {}
        tables: list[Floats] = []  # of the traffic of products
        rows = sorted(engine.layout.row.items(), key=lambda item: item[1])
        self._start = np.zeros(count + 1, np.int64)
        self._start[[row + 1 for _, row in rows]] = 3
        np.cumsum(self._start, out=self._start)
        self._resource = np.zeros(3 * len(rows), np.int32)
        self._weight = np.full(3 * len(rows), _NONE)
        self._grid_of: dict[int, int] = {}
        for number, (place, row) in enumerate(rows):
            c, edge = place[0], 3 * number
            nothing = 3 * classes + c
            self._edge[row] = edge
            self._resource[edge : edge + 3] = classes + c, c, 2 * classes + c
            if place in engine.layout.launch_row:
                key = c, *_transfer_key(engine, place)
                if key not in transfer_resources:
                    transfer_resources[key] = len(capacity)
                    capacity.append(1.0)
                    slowed.append((classes + c, 2 * classes + c))
                # A class has a port inside its node and one to other nodes.
                port = self._ports + 2 * c + engine.crosses_nodes(place)
                mine = engine.op(place).collective
                receives = mine is not None and mine.kind == "recv"  # both directions at once
                self._transfer[place] = transfer_resources[key], nothing if receives else port
                self._resource[edge + 2], self._resource[edge + 1] = self._transfer[place]
            elif (cost := engine.op(place).cost) is not None and engine.is_product(place):
                self._grid_of[row] = len(self._grid_of)
                self._resource[edge + 1] = nothing  # tiles are counted whole
                tables.append(engine.demands.traffic(cost))
        self._traffic = np.concatenate(tables) if 0 < len(tables) <= _MOST_TABLES else None
        self._capacity = np.array(capacity)
        self._slowed = np.array(slowed, np.int32)
        self._grids = {
            name: np.ones(len(self._grid_of), kind)
            for name, kind in (("grid_tiles", np.float64), ("grid_tile_seconds", np.float64))
        } | {"grid_slots": np.ones(len(self._grid_of), np.int32)}
        self._kernels: dict[tuple[str, Cost, float], tuple[Flow, GridTiles | None]] = {}
        state = self._state()
        self._capacity[self._ports : self._ports + 2 * classes] = engine.port_rates()
        self._set_all(engine, state)

    def _set_all(self, engine: StepEngine, state: dict[str, Any]) -> None:
        """Set every op as the engine has priced it."""
        launches = engine.layout.launch_row
        self._number = {place: number for number, place in enumerate(launches)}
        self._launch_rows = np.array(list(launches.values()), np.int64)
        self._flow_rows = np.array([engine.layout.row[place] for place in launches], np.int64)
        known: dict[float, Execution] = {}
        executions = {}
        for place in engine.layout.row:
            seconds = engine.seconds[place]
            if place in launches:
                executions[place] = known.setdefault(seconds, Execution(seconds))
            else:
                self._set_kernel(engine, state, place, seconds)
        self._set_collectives(engine, state, executions, 1.0)

    def _state(self) -> dict[str, Any]:
        return {
            "size": self._size,
            "cap": self._cap,
            "own": self._own,
            "units": self._units,
            "capacity": self._capacity,
            "demand_weight": self._weight,
            "slowed_second": self._slowed[:, 1],
            **self._grids,
        }

    def _set_kernel(
        self, engine: StepEngine, state: dict[str, Any], place: Place, seconds: float
    ) -> None:
        row, op = engine.layout.row[place], engine.op(place)
        key = op.kind, op.cost or Cost(), seconds
        if key not in self._kernels:
            price = engine.demands.copy if op.kind == "copy" else engine.demands.kernel
            self._kernels[key] = price(key[1], engine.own(seconds))
        flow, tiles = self._kernels[key]
        edge = self._edge[row]
        state["own"][row] = engine.own(seconds)
        state["size"][row], state["cap"][row] = flow.size, flow.cap
        state["demand_weight"][edge] = flow.memory or _NONE
        state["demand_weight"][edge + 1] = flow.units or _NONE
        if tiles is not None:
            grid = self._grid_of[row]
            state["demand_weight"][edge + 2] = tiles.cache or _NONE
            state["grid_tiles"][grid] = tiles.tiles
            state["grid_tile_seconds"][grid] = tiles.tile_seconds
            state["grid_slots"][grid] = tiles.grid.slots

    def _set_collectives(
        self,
        engine: StepEngine,
        state: dict[str, Any],
        executions: Mapping[Place, Execution],
        pressure: float,
    ) -> None:
        """Set what collectives demand, at once for those with one resource and one execution."""
        alike: dict[tuple[tuple[int, int], int], list[Place]] = defaultdict(list)
        for place, how in executions.items():
            alike[self._transfer[place], id(how)].append(place)
        for ((resource, port), _), places in alike.items():
            place = places[0]
            how, numbers = executions[place], [self._number[each] for each in places]
            flow, moved_by = engine.collective_flow(place, how)
            rows = self._flow_rows[numbers]
            edges = self._start[rows]
            state["size"][rows], state["cap"][rows] = flow.size, flow.cap
            state["own"][rows] = engine.own(how.seconds)
            held = min(round(pressure * moved_by.held), engine.device.units)
            state["units"][self._launch_rows[numbers]] = held
            state["demand_weight"][edges] = flow.memory or _NONE
            if port >= self._ports:
                rate = self._capacity[port]
                # A candidate may be faster than what set the rate of the port: it then takes all
                # of it.
                state["demand_weight"][edges + 1] = min(moved_by.transfers, rate / flow.cap)
            state["demand_weight"][edges + 2] = moved_by.demand
            state["capacity"][resource] = moved_by.capacity
            state["slowed_second"][resource] = (
                # Engines copy past the L2, so its load does not delay them.
                -1 if moved_by.by_engines else 2 * self._classes + place[0]
            )

    def changed(
        self,
        engine: StepEngine,
        executions: Mapping[Place, Execution],
        seconds: Mapping[Place, float],
        pressure: float,
    ) -> dict[str, Any]:
        """Return the columns of a run."""
        state = {name: column.copy() for name, column in self._state().items()}
        if pressure != 1.0:
            state["units"] = np.minimum(
                np.round(pressure * state["units"]), engine.device.units
            ).astype(np.int32)
        for place, took in seconds.items():
            self._set_kernel(engine, state, place, took)
        priority = engine.fixed["thread_priority"].copy()
        self._set_collectives(engine, state, executions, pressure)
        for place, how in executions.items():
            if how.first:
                priority[engine.fixed["thread"][engine.layout.launch_row[place]]] = 1
        columns = engine.fixed | {
            "demand_start": self._start,
            "demand_resource": self._resource,
            "thread_priority": priority,
            **engine.dispatch_columns(state.pop("own"), executions),
            **state,
        }
        return columns | self._grid_columns(engine) if self._grid_of else columns

    def _grid_columns(self, engine: StepEngine) -> dict[str, Any]:
        """Return what the simulator asks of products, which are whole tiles."""
        count, kernels = len(self._grid_of), engine.device.kernels
        row_grid = np.full(len(self._size), -1, np.int32)
        row_grid[list(self._grid_of)] = list(self._grid_of.values())
        return {
            "row_grid": row_grid,
            "grid_units": np.full(count, engine.device.units, np.int32),
            **self._grid_traffic(engine),
            "slowed_first": np.ascontiguousarray(self._slowed[:, 0]),
            "load_stretch": kernels.load_latency,
            "dispatch_share": kernels.dispatch_share,
            **self._clock_columns(engine),
        }

    def _clock_columns(self, engine: StepEngine) -> dict[str, Any]:
        """Return the watts that traffic takes from products: ports pay for both directions."""
        device, classes = engine.device, self._classes
        joules = np.zeros(len(self._capacity))
        pool = np.full(len(self._capacity), -1, np.int32)
        for each in range(classes):
            joules[classes + each] = device.power.memory_byte
            pool[classes + each] = each
            ports = slice(self._ports + 2 * each, self._ports + 2 * each + 2)
            # A collective receives as much as it sends; flows count what is sent.
            joules[ports] = 2 * device.power.link_byte
            pool[ports] = each
        joules *= device.kernels.clock_coupling
        return {
            "clock_joules": joules,
            "clock_pool": pool,
            "clock_watts": device.power.unit,
            "clock_held": device.kernels.held_watts,
        }

    def _grid_traffic(self, engine: StepEngine) -> dict[str, Any]:
        """Return what products ask of memory on fewer units, where there is room for that."""
        count, each = len(self._grid_of), engine.device.units + 1
        if self._traffic is None:
            starts, traffic = np.zeros(count + 1, np.int64), np.empty(0)
            return {
                "grid_edge": np.full(count, -1, np.int32),
                "grid_traffic_start": starts,
                "grid_traffic": traffic,
            }
        return {
            "grid_edge": np.array([self._edge[row] for row in self._grid_of], np.int32),
            "grid_traffic_start": np.arange(count + 1, dtype=np.int64) * each,
            "grid_traffic": self._traffic,
        }
