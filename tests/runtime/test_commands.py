"""Every kind of command, executed by real processes, compared with the reference interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.arrays import Machine
from tests.runtime.cases import CASES, OPS
from weft.runtime import prepare, run, spawn
from weft.schedule import CommandKind, expand
from weft.timeline import Span

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(60)]
EXECUTIONS = 3


def filled(schedule, execution, rank):
    """Random contents of what the caller fills."""
    rng = np.random.default_rng([execution, rank])
    return {
        b.name: rng.integers(0, 256, b.size_on(rank), np.uint8)
        for b in schedule.buffers
        if b.role in ("in", "inout")
    }


def execute_all(world):
    """One after another, each several times; what is in the buffers then, and the spans."""
    return {name: execute(world, make(world.num_ranks)) for name, make in CASES.items()}


def execute(world, schedule):
    memory = []
    with prepare(schedule, world) as prepared:
        for execution in range(EXECUTIONS):
            prepared.load(filled(schedule, execution, world.rank))
            world.barrier()
            timeline = prepared.run(OPS, timeline=True)
            memory.append({b.name: prepared.buffer(b.name).copy() for b in schedule.buffers})
    return memory, timeline


@pytest.fixture(scope="module", params=[2, 3, 4])
def executed(request):
    return spawn(execute_all, request.param, timeout=20)


@pytest.mark.parametrize("name", CASES)
def test_every_byte_is_the_reference_interpreters(executed, name):
    schedule = CASES[name](len(executed))
    machine = Machine(schedule, ops=OPS)
    for execution in range(EXECUTIONS):
        for rank in range(len(executed)):
            for buffer, data in filled(schedule, execution, rank).items():
                machine.memory[rank, buffer][:] = data
        machine.run()
        for rank, results in enumerate(executed):
            for buffer, have in results[name][0][execution].items():
                assert np.array_equal(have, machine.memory[rank, buffer]), (execution, rank, buffer)


@pytest.mark.parametrize("name", CASES)
def test_every_command_has_a_span_and_each_thread_keeps_its_order(executed, name):
    table = expand(CASES[name](len(executed)))
    for results in executed:
        timeline = results[name][1]
        assert timeline.num_spans == table.num_rows
        assert timeline.basis == "measured"
        assert (timeline.end >= timeline.start).all()
        threads: dict[tuple[int, str, int], list[Span]] = {}
        for span in timeline.spans():
            if span.kind != CommandKind.CALL:
                threads.setdefault((span.rank, span.queue, span.lane), []).append(span)
        for spans in threads.values():
            in_time = sorted(spans, key=lambda span: (span.start, span.end, span.id))
            assert [span.id for span in in_time] == sorted(span.id for span in spans)


@pytest.mark.parametrize("name", CASES)
def test_all_ranks_see_the_same_timeline(executed, name):
    first, *others = (results[name][1] for results in executed)
    for other in others:
        assert np.array_equal(first.start, other.start)
        assert np.array_equal(first.end, other.end)


def execute_hundred_times(world):
    schedule = CASES["far_host"](world.num_ranks)
    sums = []
    with prepare(schedule, world) as prepared:
        for execution in range(100):
            prepared.load(filled(schedule, execution, world.rank))
            world.barrier()
            prepared.run()
            sums.append(prepared.buffer("out").copy())
    return sums


def test_the_hundredth_execution_is_as_right_as_the_first():
    schedule = CASES["far_host"](2)
    results = spawn(execute_hundred_times, 2, timeout=20)
    machine = Machine(schedule)
    for execution in range(100):
        for rank in range(2):
            machine.memory[rank, "in"][:] = filled(schedule, execution, rank)["in"]
        machine.run()
        for rank in range(2):
            assert np.array_equal(results[rank][execution], machine.memory[rank, "out"])


def run_with_arrays(world):
    given = np.arange(250, dtype=np.float32) + world.rank
    data = {"in": given.copy(), "out": np.zeros((25, 10), np.float32)}
    timeline = run(CASES["copy_engine"](world.num_ranks), world, data)
    assert np.array_equal(data["in"], given)
    return data["out"], timeline.makespan


def test_run_copies_arrays_in_and_out():
    results = spawn(run_with_arrays, 3, timeout=20)
    for rank, (out, seconds) in enumerate(results):
        want = np.arange(250, dtype=np.float32) + (rank - 1) % 3
        assert np.array_equal(out.reshape(-1), want)
        assert 0 < seconds < 20


def interleave(world):
    """Several prepared at once, executed in turns, closed in another order."""
    names = ["copy_engine", "lanes", "submits"]
    schedules = {name: CASES[name](world.num_ranks) for name in names}
    prepared = {name: prepare(schedules[name], world) for name in names}
    memory = {}
    for execution in range(3):
        for name in names:
            prepared[name].load(filled(schedules[name], execution, world.rank))
            world.barrier()
            prepared[name].run(OPS)
            memory[name] = prepared[name].buffer("out").copy()
    for name in ("lanes", "copy_engine", "submits"):
        prepared[name].close()
    with prepare(schedules["lanes"], world) as again:  # in memory that was used before
        again.load(filled(schedules["lanes"], 2, world.rank))
        world.barrier()
        again.run(OPS)
        assert np.array_equal(again.buffer("out"), memory["lanes"])
    return memory


def test_prepared_schedules_do_not_disturb_each_other():
    results = spawn(interleave, 2, timeout=20)
    for name in results[0]:
        schedule = CASES[name](2)
        machine = Machine(schedule, ops=OPS)
        for rank in range(2):
            machine.memory[rank, "in"][:] = filled(schedule, 2, rank)["in"]
        machine.run()
        for rank in range(2):
            assert np.array_equal(results[rank][name], machine.memory[rank, "out"])
