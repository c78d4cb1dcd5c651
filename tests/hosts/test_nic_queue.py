"""Schedules between hosts: what is simulated is what runs."""

from collections import Counter, deque
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.hosts.ranks import on_hosts
from tests.test_contract import order
from weft.collectives import host_leaders
from weft.collectives.host_leaders import HostLeaders, by_pull
from weft.collectives.parts import in_place, own, signal, wait
from weft.errors import ScheduleError
from weft.hardware import platform
from weft.runtime import World
from weft.schedule import (
    SELF,
    Call,
    CommandKind,
    Copy,
    Group,
    Program,
    Queue,
    Schedule,
    Slice,
    Swap,
    expand,
)
from weft.simulator import simulate
from weft.timeline import Timeline
from weft.torch.hosts.linear_order import linear_program
from weft.torch.hosts.multi_host_channel import MultiHostChannel
from weft.torch.hosts.nic_steps import (
    Inside,
    LinearProgram,
    Post,
    Received,
    Send,
    Sent,
    Step,
    StepTimes,
)

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
        leaders = HostLeaders(topology.hosts.ranks, root, partial(built_by, channel.world))
        schedule = build(leaders, last.nbytes, **options)  # of all hosts
        buffers = {key: tensor.view(torch.uint8) for key, tensor in tensors.items()}
        scratch = torch.empty(program.scratch_bytes, dtype=torch.uint8)
        buffers |= {key: scratch[start:stop] for key, start, stop in program.scratch}
        times = StepTimes([], [])
        with topology.session(name, last.nbytes) as session:
            program.run(channel.world, session, buffers, torch.float32, times)
        found[name] = schedule, rows_with_times(schedule, program, dist.get_rank(), times)
        result = tensors.get("out", last)
        unchanged = name == "reduce" and dist.get_rank() != root
        want = 1.0 if unchanged or name in ("broadcast", "all_gather") else float(len(HOSTS))
        assert torch.equal(result, torch.full_like(result, want)), name
    return found


def built_by(world: World, kind: str, num_ranks: int, size: int, **options: Any) -> Schedule:
    """Return the schedule that a world has for a call inside its host."""
    dtype, op, root = options.get("dtype", "uint8"), options.get("op", ""), options.get("root", -1)
    return world.schedule_of((kind, size, dtype, op, root, ""), num_ranks)


def rows_with_times(
    schedule: Schedule, program: LinearProgram, rank: int, times: StepTimes
) -> list[tuple[int, int, int]]:
    table = expand(schedule)
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


def of_ranks(ranks: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
    """Return the host of every rank."""
    hosts = {rank: host for host, members in enumerate(ranks) for rank in members}
    return tuple(hosts[rank] for rank in range(len(hosts)))


def crosswise(*, stream_sends: bool) -> Schedule:
    """Hosts 0 and 1: nic0 of rank 0 waits for flag 1, its nic1 answers flag 2 by flag 3.

    Rank 1 raises flag 1 after it has flag 3. Queues that run at the same time come to an end.
    """
    there, here = Slice(1, "data", 0, 8), Slice(0, "data", 0, 8)
    answer = (wait(2), Copy(own("data", 0, 8), there), signal(1, 3))
    waits: tuple[Queue, ...] = (Queue("nic0", (wait(1),)), Queue("nic1", answer))
    if stream_sends:
        waits = (
            Queue("nic0", (wait(1),)),
            Queue("nic1", (wait(4), *answer[1:])),
            Queue("stream0", (wait(2), signal(SELF, 4))),
        )
    other = (
        Copy(own("data", 0, 8), here),
        signal(0, 2),
        wait(3),
        Copy(own("data", 0, 8), here),
        signal(0, 1),
    )
    programs = (Program((0,), waits), Program((1,), (Queue("nic0", other),)))
    return Schedule("crosswise", 2, programs, (in_place(64),), 5)


@pytest.mark.parametrize("stream_sends", [False, True])
def test_queues_that_wait_for_two_messages_at_once_are_refused(stream_sends):
    with pytest.raises(ScheduleError, match=r"rank 0: nic0 .* flag 1 and .* flag 2"):
        linear_program(crosswise(stream_sends=stream_sends), 0, (0, 1), no_call)


def test_a_call_with_a_rank_that_waits_is_refused_while_a_message_is_awaited():
    inner = by_pull("broadcast", 2, 64, root=0)
    call = Call("inside", inner, Group(2, 1, (0, 1)), (("data", "data", 0),))
    leaders = (Queue("nic0", (wait(0),)), Queue("stream0", (call,)))
    send = (Copy(own("data", 0, 8), Slice(0, "data", 0, 8)), signal(0, 0))
    both = (Copy(own("data", 0, 8), Slice(1, "data", 0, 8)), signal(1, 0))
    programs = (Program((0, 1), leaders), Program((2,), (Queue("nic0", (*send, *both)),)))
    made = Schedule("made", 3, programs, (in_place(64),), 1)
    with pytest.raises(ScheduleError, match=r"stream0 for inside and nic0 .* flag 0"):
        linear_program(made, 0, (0, 0, 1), no_call)


def test_calls_on_two_queues_are_refused():
    inner = by_pull("broadcast", 2, 64, root=0)
    call = Call("inside", inner, Group(2, 1, (0, 1)), (("data", "data", 0),))
    queues = (Queue("stream0", (call,)), Queue("stream1", (call,)))
    made = Schedule("made", 3, (Program((0, 1), queues),), (in_place(64),), 1)
    with pytest.raises(ScheduleError, match="stream0 and stream1 both have calls"):
        linear_program(made, 0, (0, 0, 1), no_call)


LAYOUTS = {
    "pairs": ((0, 1), (2, 3)),
    "lone hosts": ((0,), (1,), (2,)),
    "unequal": ((0, 1, 2), (3,), (4, 5)),
    "interleaved": ((0, 2, 4), (1, 3), (5,)),
}
SIZES = {"one block": 12 << 10, "many blocks": 6 << 20}


@lru_cache
def programs_of(
    name: str, ranks: tuple[tuple[int, ...], ...], nbytes: int
) -> list[tuple[LinearProgram, LinearProgram]]:
    """Return the program of every rank: from the schedule of all hosts, and from its host's."""
    build, root, options = CASES[name]
    host_of, inside = of_ranks(ranks), cache(by_pull)

    def key(schedule: Schedule) -> Any:
        return (schedule.name, schedule.num_ranks, "", "", 0, "")

    def program(rank: int, seen_by: int | None) -> LinearProgram:
        made = build(HostLeaders(ranks, root, inside, seen_by), nbytes, **options)
        return linear_program(made, rank, host_of, key)

    return [(program(rank, None), program(rank, host)) for rank, host in enumerate(host_of)]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_a_host_builds_what_the_schedule_of_all_hosts_has_for_it(name, layout, size):
    for whole, own_part in programs_of(name, LAYOUTS[layout], SIZES[size]):
        assert own_part.steps == whole.steps
        assert own_part.spans == whole.spans


class JointExecution:
    """The programs of all ranks, executed together: whatever can go on does."""

    def __init__(self, ranks: tuple[tuple[int, ...], ...], steps: list[list[Step]]) -> None:
        self.mates = {rank: members for members in ranks for rank in members}
        self.left = [deque(each) for each in steps]
        self.sent, self.posted = Counter[Any](), Counter[Any]()  # messages by sender, receiver, tag
        self.receives: list[dict[int, Any]] = [{} for _ in steps]
        self.sends: list[list[Any]] = [[] for _ in steps]
        self.calls = [0] * len(steps)

    def can_go_on(self, rank: int) -> bool:
        match self.left[rank][0]:
            case Received(number):
                message, index = self.receives[rank][number]
                return bool(self.sent[message] > index)
            case Sent():
                return all(self.posted[message] > index for message, index in self.sends[rank])
            case Inside():
                return all(self.has_come(mate, self.calls[rank]) for mate in self.mates[rank])
        return True

    def has_come(self, rank: int, call: int) -> bool:
        at_call = bool(self.left[rank]) and isinstance(self.left[rank][0], Inside)
        return self.calls[rank] + at_call > call

    def go_on(self, rank: int) -> None:
        match self.left[rank].popleft():
            case Send(peer, tag, _):
                message = (rank, peer, tag)
                self.sends[rank].append((message, self.sent[message]))
                self.sent[message] += 1
            case Post(number, peer, tag, _):
                message = (peer, rank, tag)
                self.receives[rank][number] = (message, self.posted[message])
                self.posted[message] += 1
            case Inside():
                self.calls[rank] += 1

    def run(self) -> None:
        ranks = range(len(self.left))
        while able := [rank for rank in ranks if self.left[rank] and self.can_go_on(rank)]:
            for rank in able:
                self.go_on(rank)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", CASES)
def test_the_programs_of_all_ranks_come_to_an_end(name, layout, size):
    programs = programs_of(name, LAYOUTS[layout], SIZES[size])
    joint = JointExecution(LAYOUTS[layout], [program.steps for _, program in programs])
    joint.run()
    assert not any(joint.left)
    assert joint.sent == joint.posted


@pytest.mark.parametrize("name", ["reduce_scatter", "all_gather", "broadcast"])
def test_what_a_host_builds_does_not_grow_with_what_others_send_each_other(name):
    build, root, options = CASES[name]
    ranks = tuple((host * 2, host * 2 + 1) for host in range(16))

    def num_commands(seen_by: int | None) -> int:
        made = build(HostLeaders(ranks, root, cache(by_pull), seen_by), 64 << 20, **options)
        return sum(len(queue.commands) for each in made.programs for queue in each.queues)

    assert num_commands(3) < num_commands(None) / 4
