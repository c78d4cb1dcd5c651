"""Collectives over hosts: checked, by value, and with hosts of any number of ranks in any order."""

import numpy as np
import pytest

from tests.arrays import Machine
from tests.collective_values import expected, inputs
from weft.collectives import host_leaders
from weft.collectives.host_leaders import LONE_CHUNK, SMALL, HostLeaders
from weft.schedule import Copy, Schedule
from weft.schedule.check import check
from weft.schedule.values import as_int

pytestmark = pytest.mark.thorough

HOSTS = {
    "two by two": ((0, 1), (2, 3)),
    "alone": ((0,), (1,)),
    "uneven": ((0,), (1, 2), (3,)),
    "mixed": ((0, 2), (1,)),
    "three by two": ((0, 1), (2, 3), (4, 5)),
}
SIZES = (1200, SMALL + 1, 1_600_000)
KINDS = ("all_reduce", "broadcast", "all_gather", "reduce", "reduce_scatter")
ROOTED = ("broadcast", "reduce")
ROOT = 1


def build(kind: str, hosts: str, size: int) -> Schedule:
    leaders = HostLeaders(HOSTS[hosts], ROOT if kind in ROOTED else -1)
    if kind == "broadcast":
        return host_leaders.broadcast(leaders, size, 64 << 10)
    if kind in ("all_gather", "reduce_scatter"):
        size -= size % leaders.num_ranks
    made: Schedule = getattr(host_leaders, kind)(leaders, size)
    return made


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("kind", KINDS)
def test_has_no_race_and_gives_what_the_collective_promises(kind, hosts, size):
    schedule = build(kind, hosts, size)
    check(schedule)
    data = inputs(kind, schedule, seed=3, root=ROOT)
    machine = Machine(schedule, seed=size)
    for place, value in data.items():
        machine.memory[place][:] = value
    machine.run()
    for place, want in expected(kind, schedule, data, ROOT).items():
        assert np.array_equal(machine.memory[place], want), place


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_are_sent_to_another_host_once(kind):
    size = 4 * LONE_CHUNK
    for hosts in ("two by two", "three by two"):
        schedule = build(kind, hosts, size)
        host_of = {rank: host for host, ranks in enumerate(HOSTS[hosts]) for rank in ranks}
        sent = sum(
            as_int(command.src.nbytes)
            for place, command in schedule.commands()
            if isinstance(command, Copy)
            and host_of[place.rank] != host_of[as_int(command.dst.rank)]
        )
        n = len(HOSTS[hosts])
        whole = size if kind in (*ROOTED, "all_reduce") else size - size % schedule.num_ranks
        assert sent == (n - 1) * whole * (2 if kind == "all_reduce" else 1)
