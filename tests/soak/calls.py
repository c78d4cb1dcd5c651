"""One step carried out: by a World, by torch.distributed, or by a prepared schedule."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _make_nccl_premul_sum

from tests.soak.plan import Step
from tests.soak.rooms import Comb, Room, Rooms
from tests.soak.values import Array, Case, hop, item_bytes, uneven
from weft.collectives import collective
from weft.runtime import PreparedSchedule, World, prepare

IN_PLACE = ("all_reduce", "broadcast", "reduce")
_TORCH_OPS = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "min": dist.ReduceOp.MIN,
    "max": dist.ReduceOp.MAX,
    "band": dist.ReduceOp.BAND,
    "bor": dist.ReduceOp.BOR,
    "bxor": dist.ReduceOp.BXOR,
    "avg": dist.ReduceOp.AVG,
    "premul:0.5": _make_nccl_premul_sum(0.5),
}


class Flight(NamedTuple):
    """A call under way: what to wait for, and what must then hold."""

    step: Step
    works: list[Any]
    held: list[tuple[Any, Array]]  # memory, and the bytes that it must hold

    def land(self) -> bool:
        """Wait; tell whether every byte is right."""
        for work in self.works:
            if self.step.seed % 4 == 1 and hasattr(work, "get_future"):
                with suppress(RuntimeError):  # torch's own, around the text; the work has the name
                    work.get_future().wait()
            work.wait()
        return all(memory.holds(wanted) for memory, wanted in self.held)


def joined(parts: list[Array]) -> Array:
    return np.concatenate(parts) if parts else np.empty(0, np.uint8)


class Bench:
    """Where a call finds memory: on each rank as its own dice say."""

    def __init__(self, rooms: Rooms, dice: random.Random) -> None:
        self._rooms = rooms
        self._dice = dice

    def room(self, nbytes: int) -> Room:
        return self._rooms.take(nbytes, in_heap=self._dice.random() < 0.5)

    def filled(self, given: Array) -> Room:
        room = self.room(given.nbytes)
        room.fill(given)
        return room

    def any_room(self, nbytes: int, dtype: str) -> Room | Comb:
        return Comb(nbytes, dtype) if self._dice.random() < 0.2 else self.room(nbytes)

    def any_filled(self, given: Array, dtype: str) -> Room | Comb:
        room = self.any_room(given.nbytes, dtype)
        room.fill(given)
        return room


def by_world(  # noqa: C901 - one case a collective
    world: World, step: Step, case: Case, bench: Bench
) -> Flight:
    ask, later = step.ask, step.later
    held: list[tuple[Any, Array]] = []
    works: list[Any] = []

    def named(memory: Room) -> Any:
        return memory.memory(ask.dtype)

    def into(wanted: Array) -> Any:
        room = bench.room(wanted.nbytes)
        held.append((room, wanted))
        return named(room)

    def of(given: Array) -> Any:
        room = bench.filled(given)
        held.append((room, given))
        return named(room)

    def in_place() -> Any:
        room = bench.filled(case.given[0])
        held.append((room, case.wanted[0]))
        return named(room)

    x, out = (lambda: of(joined(case.given))), (lambda: into(joined(case.wanted)))
    how: dict[str, Any] = {"async_op": later}
    if ask.algorithm:
        how["algorithm"] = ask.algorithm
    match ask.kind:
        case "barrier":
            works = [world.barrier(async_op=later)]
        case "all_gather":
            works = [world.all_gather(out(), x(), **how)]
        case "reduce_scatter":
            works = [world.reduce_scatter(out(), x(), ask.op, **how)]
        case "all_to_all":
            works = [world.all_to_all(out(), x(), **how)]
        case "all_reduce":
            works = [world.all_reduce(in_place(), ask.op, **how)]
        case "broadcast":
            works = [world.broadcast(in_place(), ask.root, **how)]
        case "reduce":
            works = [world.reduce(in_place(), ask.root, ask.op, **how)]
        case "gather":
            there = out() if world.rank == ask.root else None
            works = [world.gather(there, x(), ask.root, **how)]
        case "scatter":
            whole = x() if world.rank == ask.root else None
            works = [world.scatter(out(), whole, ask.root, **how)]
        case "exchange":
            outs = [into(each) for each in case.wanted]
            works = [world.exchange(outs, [of(each) for each in case.given], **how)]
        case "message":
            far, n, tag = hop(ask, world.num_ranks), world.num_ranks, step.seed % 3
            sent = world.send(of(case.given[0]), (world.rank + far) % n, tag, async_op=True)
            world.recv(out(), (world.rank - far) % n, tag)
            assert sent is not None
            sent.wait()
    return Flight(step, [work for work in works if work is not None], held)


def by_torch(  # noqa: C901, PLR0912, PLR0915 - one case a collective
    group: Any, step: Step, case: Case, bench: Bench
) -> Flight:
    ask, me, n = step.ask, dist.get_rank(group), dist.get_world_size(group)
    held: list[tuple[Any, Array]] = []
    in_lists = step.seed % 2 == 0

    def into(wanted: Array) -> torch.Tensor:
        room = bench.any_room(wanted.nbytes, ask.dtype)
        held.append((room, wanted))
        return room.tensor(ask.dtype)

    def of(given: Array, wanted: Array | None = None) -> torch.Tensor:
        room = bench.any_filled(given, ask.dtype)
        held.append((room, given if wanted is None else wanted))
        return room.tensor(ask.dtype)

    def whole_in() -> torch.Tensor:
        return of(joined(case.given))

    def whole_out() -> torch.Tensor:
        return into(joined(case.wanted))

    def splits() -> tuple[list[int], list[int]]:
        return [uneven(ask, r, me) for r in range(n)], [uneven(ask, me, r) for r in range(n)]

    root = dist.get_global_rank(group, ask.root)
    op = _TORCH_OPS.get(ask.op)
    how: dict[str, Any] = {"group": group, "async_op": step.later}
    work: Any = None
    works: list[Any] = []
    match ask.kind, in_lists:
        case "barrier", _:
            work = dist.barrier(**how)
        case "all_gather", True:
            work = dist.all_gather([into(each) for each in case.wanted], whole_in(), **how)
        case "all_gather", False:
            work = dist.all_gather_into_tensor(whole_out(), whole_in(), **how)
        case "reduce_scatter", True:
            parts = [of(each) for each in case.given]
            work = dist.reduce_scatter(whole_out(), parts, op, **how)
        case "reduce_scatter", False:
            work = dist.reduce_scatter_tensor(whole_out(), whole_in(), op, **how)
        case (("all_to_all" | "exchange"), True):
            outs = [into(each) for each in case.wanted]
            work = dist.all_to_all(outs, [of(each) for each in case.given], **how)
        case "all_to_all", False:
            work = dist.all_to_all_single(whole_out(), whole_in(), **how)
        case "exchange", False:
            taken, sent = splits()
            work = dist.all_to_all_single(whole_out(), whole_in(), taken, sent, **how)
        case "all_reduce", _:
            work = dist.all_reduce(of(case.given[0], case.wanted[0]), op, **how)
        case "broadcast", _:
            work = dist.broadcast(of(case.given[0], case.wanted[0]), root, **how)
        case "reduce", _:
            work = dist.reduce(of(case.given[0], case.wanted[0]), root, op, **how)
        case "gather", _:
            outs = [into(each) for each in case.wanted]
            work = dist.gather(whole_in(), outs or None, root, **how)
        case "scatter", _:
            parts = [of(each) for each in case.given]
            work = dist.scatter(whole_out(), parts or None, root, **how)
        case "message", _:
            there = dist.get_global_rank(group, (me + hop(ask, n)) % n)
            source = dist.get_global_rank(group, (me - hop(ask, n)) % n)
            works = [dist.isend(whole_in(), there, group, step.seed % 3)]
            works += [dist.irecv(whole_out(), source, group, step.seed % 3)]
    flight = Flight(step, [each for each in (work, *works) if each is not None], held)
    if ask.kind == "message":  # nobody but the two ranks carries it on
        for each in works:
            each.wait()
    return flight


class Schedules:
    """Prepared schedules, the oldest closed when there are too many. Same on every rank."""

    _MOST = 10

    def __init__(self, world: World) -> None:
        self._world = world
        self._prepared: dict[Any, PreparedSchedule] = {}

    def run(self, step: Step, case: Case) -> bool:
        """Execute with the schedule's own memory; tell whether every byte is right."""
        prepared = self._find(step)
        given, wanted = joined(case.given), joined(case.wanted)
        name = "data" if "data" in prepared.table.buffers else "in"
        here = prepared.buffer(name)
        if here.size > given.size:  # an all-gather in place: a rank brings its own part
            here = here[self._world.rank * given.size :][: given.size]
        here[:] = given
        if step.seed % 8 == 0:
            prepared.run(timeline=True)
        else:
            prepared.run()
        have = prepared.buffer("data" if name == "data" else "out")
        return np.array_equal(have, wanted)

    def close(self) -> None:
        for each in self._prepared.values():
            each.close()
        self._prepared.clear()

    def _find(self, step: Step) -> PreparedSchedule:
        ask = step.ask
        if ask not in self._prepared:
            if len(self._prepared) >= self._MOST:
                self._prepared.pop(next(iter(self._prepared))).close()
            self._prepared[ask] = prepare(self._build(step), self._world)
        return self._prepared[ask]

    def _build(self, step: Step) -> Any:
        ask, n = step.ask, self._world.num_ranks
        whole = 1 if ask.kind in IN_PLACE else n
        options: dict[str, Any] = {"dtype": ask.dtype, "op": ask.op} if ask.op else {}
        if ask.kind == "broadcast":
            options["root"] = ask.root
        nbytes = ask.count * whole * item_bytes(ask.dtype)
        return collective(ask.kind, ask.algorithm, num_ranks=n, nbytes=nbytes, **options)
