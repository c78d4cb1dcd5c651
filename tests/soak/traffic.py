"""Mixed random collectives on every rank, each byte of every result known beforehand.

``python -m tests.soak.traffic SEED COUNT ASKS`` prints a line of JSON for each rank.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import weft.torch
from tests.soak.calls import Bench, Flight, Schedules, by_torch, by_world
from tests.soak.forks import answers_of
from tests.soak.growth import Held, held
from tests.soak.plan import Plan, Step
from tests.soak.rooms import Rooms
from tests.soak.values import case_of
from weft.collectives import collective
from weft.runtime import World, prepare

RANKS = 4
GROUP = (0, 1, 3)  # of the ranks: three of them are no power of two
_IN_FLIGHT = 6
_LATE = 0.05  # seconds: longer than who asks for a future carries its work on himself
_SAMPLES = 40
_RENEW = 400  # steps between new arenas in the heap
_REGROUP = 2500  # steps between new groups


@dataclass
class Report:
    """What a rank saw."""

    calls: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    samples: list[Held] = field(default_factory=list)


class Traffic:
    """One rank's part; its default group is weft's."""

    def __init__(self, seed: int, *, asks: int) -> None:
        self.world = weft.torch.world_of()
        n = self.world.num_ranks
        sizes = {"world": n, "torch": n, "prepared": n, "group": 3, "torch group": 3}
        self._plan = Plan(seed, sizes, asks=asks)
        self._rooms = Rooms(self.world)
        self._dice = random.Random(f"{seed} of rank {self.world.rank}")
        self._bench = Bench(self._rooms, self._dice)
        self._schedules = Schedules(self.world)
        self._flights: list[Flight] = []
        self.report = Report()
        self._make_groups()

    def run(self, count: int) -> Report:
        self._start_threads()
        for number in range(count):
            if number and number % _RENEW == 0:
                self._land_all()
                self._rooms.renew()
            if number and number % _REGROUP == 0:
                self._land_all()
                self._end_groups()
                self._make_groups()
            if number % max(count // _SAMPLES, 1) == 0:
                self.report.samples.append(held())
            self._take(number, self._plan.draw())
        self._land_all()
        self._schedules.close()
        self._end_groups()
        return self.report

    def _start_threads(self) -> None:
        """Start what the first use starts, so that a rare call does not look like growth."""
        n, me = self.world.num_ranks, self.world.rank
        with prepare(
            collective("all_gather", "dma", num_ranks=n, nbytes=n * 64), self.world
        ) as gather:
            gather.run()
        for late in range(n):  # the others' futures are not done before it comes
            if late == me:
                time.sleep(_LATE)
            work = dist.barrier(async_op=True)
            assert work is not None
            work.get_future().wait()

    def _take(self, number: int, step: Step) -> None:
        place = self._place(step.where)
        if place is None:
            return
        size, me = (
            (place.num_ranks, place.rank)
            if isinstance(place, World)
            else (dist.get_world_size(place), dist.get_rank(place))
        )
        case = case_of(step.ask, size, me, step.seed)
        self._make_room(sum(each.nbytes + 256 for side in case for each in side))
        self.report.calls[f"{step.where} {step.ask.kind}"] += 1
        if step.where == "prepared":
            if not self._schedules.run(step, case):
                self._note(number, step)
            return
        call: Any = by_world if isinstance(place, World) else by_torch
        flight = call(place, step, case, self._bench)
        self._flights.append(flight)
        if not step.later:
            self._flights.pop()
            self._land(flight)
        while len(self._flights) > _IN_FLIGHT:
            self._land(self._flights.pop(self._dice.randrange(len(self._flights))))

    def _place(self, where: str) -> Any:
        return {
            "world": self.world,
            "prepared": self.world,
            "group": self._group,
            "torch": dist.group.WORLD,
            "torch group": self._torch_group if self._group is not None else None,
        }[where]

    def _make_groups(self) -> None:
        mine = GROUP if self.world.rank in GROUP else (self.world.rank,)
        group = self.world.group(mine)
        if group is not None and len(mine) == 1:
            group.close()
            group = None
        self._group = group
        self._torch_group = dist.new_group(list(GROUP))

    def _end_groups(self) -> None:
        if self._group is not None:
            self._group.close()
            dist.destroy_process_group(self._torch_group)

    def _make_room(self, nbytes: int) -> None:
        if not self._rooms.has(nbytes):
            self._land_all()
            self._rooms.restart()

    def _land_all(self) -> None:
        for flight in self._flights:
            self._land(flight)
        self._flights.clear()

    def _land(self, flight: Flight) -> None:
        if not flight.land():
            self._note(-1, flight.step)

    def _note(self, number: int, step: Step) -> None:
        self.report.wrong.append(f"{number}: {step}")


def rank_main(rank: int, folder: Path, seed: int, count: int, asks: int) -> str:
    """Take part, and report."""
    store = dist.FileStore(str(folder / "store"), RANKS)  # type: ignore[attr-defined]
    limit = timedelta(seconds=60)
    dist.init_process_group("weft", store=store, rank=rank, world_size=RANKS, timeout=limit)
    report = Traffic(seed, asks=asks).run(count)
    dist.destroy_process_group()
    return json.dumps(vars(report))


def main(seed: int, count: int, asks: int) -> list[str]:
    """Return the ranks' reports."""
    torch.set_num_threads(1)
    return answers_of(RANKS, partial(rank_main, seed=seed, count=count, asks=asks))


if __name__ == "__main__":
    sys.stdout.write("\n".join(main(*map(int, sys.argv[1:]))))
