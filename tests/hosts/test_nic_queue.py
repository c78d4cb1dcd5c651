"""Schedules between hosts: what is simulated is what runs."""

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.hosts.ranks import on_hosts
from tests.test_contract import order
from weft.collectives import host_leaders
from weft.collectives.parts import in_place, own, signal, wait
from weft.errors import ScheduleError
from weft.hardware import platform
from weft.schedule import (
    SELF,
    CommandKind,
    Copy,
    Program,
    Queue,
    Schedule,
    Slice,
    Swap,
    expand,
)
from weft.simulator import simulate
from weft.timeline import Timeline
from weft.torch.hosts.multi_host_channel import MultiHostChannel
from weft.torch.hosts.nic_queue import Send, Sent, StepTimes, linear_program

pytestmark = [pytest.mark.torch]

HOSTS = ("a", "a", "b", "b")
COUNT = 70_001  # elements
CASES: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "all_reduce": (host_leaders.all_reduce, -1, {"dtype": "float32", "op": "sum"}),
    "small all_reduce": (host_leaders.all_reduce, -1, {"dtype": "float32", "op": "sum"}),
    "broadcast": (host_leaders.broadcast, 1, {"piece": 64 << 10}),
    "all_gather": (host_leaders.all_gather, -1, {}),
    "reduce": (host_leaders.reduce, 1, {"dtype": "float32", "op": "sum"}),
    "reduce_scatter": (host_leaders.reduce_scatter, -1, {"dtype": "float32", "op": "sum"}),
}


def executed_with_times() -> dict[str, tuple[Schedule, list[tuple[int, int, int]]]]:
    """Run every case once on this rank: its schedule, and row, begin and end of its commands."""
    group: Any = dist.group.WORLD
    channel: Any = group.channel
    assert isinstance(channel, MultiHostChannel)
    topology, found = channel._topology, {}
    for name, (build, root, options) in CASES.items():
        count = 100 if name.startswith("small") else COUNT
        tensors = {"data": torch.ones(count)}
        if name == "all_gather":
            tensors = {"in": torch.ones(count), "out": torch.empty(len(HOSTS) * count)}
        if name == "reduce_scatter":
            tensors = {"out": torch.empty(count), "in": torch.ones(len(HOSTS) * count)}
        *_, last = tensors.values()
        program = topology.nic_queues.prepare(build, last.nbytes, root, **options)
        buffers = {key: tensor.view(torch.uint8) for key, tensor in tensors.items()}
        scratch = torch.empty(program.scratch_bytes, dtype=torch.uint8)
        buffers |= {key: scratch[start:stop] for key, start, stop in program.scratch}
        times = StepTimes([], [])
        with topology.session(name, last.nbytes) as session:
            program.run(channel.world, session, buffers, torch.float32, times)
        found[name] = program.schedule, rows_with_times(program, dist.get_rank(), times)
        result = tensors.get("out", last)
        unchanged = name == "reduce" and dist.get_rank() != root
        want = 1.0 if unchanged or name in ("broadcast", "all_gather") else float(len(HOSTS))
        assert torch.equal(result, torch.full_like(result, want)), name
    return found


def rows_with_times(program: Any, rank: int, times: StepTimes) -> list[tuple[int, int, int]]:
    table = expand(program.schedule)
    queues = np.asarray(table.queues)[table.thread_queue[table.thread]]
    mine = table.thread_rank[table.thread] == rank
    inside = (stamps.tolist() for stamps in times.inside if stamps is not None)
    found = []
    for name in dict.fromkeys(span.queue for span in program.spans):
        rows = iter(np.flatnonzero(mine & (queues == name)).tolist())
        for span in (span for span in program.spans if span.queue == name):
            row = next(rows)
            found.append((row, times.begin[span.first], times.begin[span.last]))
            if table.kind[row] == CommandKind.CALL:
                found += [(next(rows), *stamps) for stamps in next(inside)]
        assert next(rows, None) is None  # every command of the queue has run
    return found


@lru_cache
def executed() -> list[Any]:
    return on_hosts(executed_with_times, HOSTS)


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CASES)
def test_simulate_and_run_keep_the_same_order_between_hosts(name):
    schedule = executed()[0][name][0]
    times = np.zeros((expand(schedule).num_rows, 2))
    for rank in executed():
        for row, *stamps in rank[name][1]:
            times[row] = stamps
    assert times.all()  # every command of every rank has run
    measured = Timeline.from_table(
        expand(schedule), times[:, 0] / 1e9, times[:, 1] / 1e9, basis="measured"
    )
    hosts = platform("switch(2)@4GiB/s,1us/switch(2)@119MiB/s,50us")  # 1 Gbit/s between them
    predicted = simulate(schedule, hosts, collapse=False)
    assert order(predicted) == order(measured)
    assert {queue for _, queue, _ in order(measured)} == {"stream0", "nic0"}


def no_call(schedule: Schedule) -> Any:
    raise AssertionError(schedule)


def two_lone_hosts(*nic: Any, stream: tuple[Any, ...] = ()) -> Schedule:
    """Rank 0 executes these commands; rank 1 grants it every write."""
    programs = (
        Program((0,), (Queue("nic0", nic), Queue("stream0", stream))),
        Program((1,), (Queue("nic0", (signal(0, 0),)),)),
    )
    return Schedule("made", 2, programs, (in_place(64),), 3)


def test_a_signal_of_the_sender_waits_for_its_sends():
    copy = Copy(own("data", 0, 64), Slice(1, "data", 0, 64))
    made = two_lone_hosts(wait(0), copy, signal(1, 1), signal(SELF, 2), stream=(wait(2),))
    kinds = [type(step) for step in linear_program(made, 0, (0, 1), no_call).steps]
    assert kinds == [Send, Sent]


def test_commands_that_no_wire_carries_are_named():
    swap = Swap(own("data", 0, 8), Slice(1, "data", 0, 8))
    with pytest.raises(ScheduleError, match="Swap on nic0"):
        linear_program(two_lone_hosts(wait(0), swap), 0, (0, 1), no_call)


def test_a_wait_that_nothing_ends_is_an_error():
    made = two_lone_hosts(wait(2), signal(SELF, 2))
    with pytest.raises(ScheduleError, match="nic0 waits"):
        linear_program(made, 0, (0, 1), no_call)
