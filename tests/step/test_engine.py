"""A step on the engine: what runs alone, what shares a device, and what the physics demands."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.toy import MACHINE, kernel, moves, step_of
from weft.c3 import Pricer
from weft.c3.scenarios import SCENARIOS
from weft.errors import WorkloadError
from weft.hardware import platform
from weft.models.building import Ops
from weft.models.named import generate
from weft.planner.prices import Prices
from weft.schedule import CommandKind, Cost, Group
from weft.schedule.strategy import Strategy
from weft.step import NO_HOST, Collective, Execution, Op, RankStep, StepEngine, StepGraph
from weft.step.contention import contention
from weft.step.demands import OpDemands

H100, MI300X = platform("h100-8"), platform("mi300x-8")
PRODUCT = Cost("gemm", (8192, 8192, 8192), "bf16", 2.0 * 8192**3, 6 * 8192**2)
STREAMING = Cost("elementwise", (), "bf16", 0.0, 1 << 30)
KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")


def test_the_units_that_a_kernel_needs_have_no_step_where_memory_ends_to_bound_it():
    """One more token to each expert changes what its product needs of units by less than 2 %."""
    needed, groups, n, k = [], 8, 4096, 14336
    for rows in range(16, 512):
        nbytes = 2 * groups * (rows * k + k * n + rows * n)
        cost = Cost("bmm", (groups, rows, n, k), "bf16", 2.0 * groups * rows * n * k, nbytes)
        flow, _ = OpDemands(H100).kernel(cost, seconds=1e-3)
        needed.append(flow.units * flow.cap / H100.require_device().units)
    assert needed[0] == pytest.approx(0.9)
    assert needed[-1] == pytest.approx(1.0)
    for fewer, more in pairwise(needed):
        assert fewer - 1e-9 <= more < fewer + 0.02


def engine_of(graph, machine=H100, host=NO_HOST):
    return StepEngine(graph, machine, Prices(machine), host=host)


@st.composite
def steps(draw, *, streaming=True):
    """Draw products, streaming kernels and collectives on several streams."""
    ops = Ops("bf16", phase="backward")
    for _ in range(draw(st.integers(1, 6))):
        before = draw(st.integers(-1, ops.last))
        side = draw(st.booleans())  # on a stream of its own, as code with several streams does
        if not streaming or draw(st.booleans()):
            sides = [draw(st.sampled_from((256, 1024, 4096, 8192))) for _ in range(3)]
            done = ops.gemm("product", *sides, after=before)
        else:
            ops.ops.append(Op("add", cost=STREAMING, after=(before,) if before >= 0 else ()))
            done = ops.last
        if side:
            ops.ops[done] = replace(ops.ops[done], stream="side")
        if draw(st.booleans()):
            kind = draw(st.sampled_from(KINDS))
            ops.collective(kind, draw(st.integers(1, 256)) << 20, after=done)
    return StepGraph("drawn", 8, (RankStep(tuple(range(8)), tuple(ops.ops)),))


# --- alone -------------------------------------------------------------------------------------


def longest_chain(engine, step):
    """Return the end of a step without a host by following what every op waits for."""
    ends: list[float] = []
    fronts: dict[str, float] = {}
    for number, op in enumerate(step.ops):
        ready = max([fronts.get(op.stream, 0.0), *(ends[n] for n in op.after)])
        ends.append(ready + engine.seconds[0, number])
        fronts[op.stream] = ends[-1]
    return max(ends)


@settings(deadline=None, max_examples=40)
@given(steps())
def test_without_contention_a_step_takes_its_longest_chain(step):
    engine = engine_of(step, MACHINE)
    expected = longest_chain(engine, step.steps[0])
    assert engine.run(pressure=0).seconds == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("pressure", [0.0, 1.0])
def test_a_kernel_of_many_waves_holds_up_what_is_launched_behind_it(pressure):
    waves = Cost(tiles=4 * MACHINE.require_device().units)
    both = step_of(
        kernel("long", 1.0, cost=waves), moves(0.1, what=Collective("barrier", 0)), ranks=8
    )
    engine = engine_of(both, MACHINE)
    assert engine.run(pressure=pressure).span((0, 1))[0] == pytest.approx(0.75)
    first = engine.run({(0, 1): Execution(0.1, first=True)}, pressure=1.0)
    assert first.span((0, 1))[0] == pytest.approx(0.0, abs=1e-6)


def unexplained(engine, recorded):
    """Return by how much the ops of a run differ from what was recorded of them, in sum."""
    run = engine.run()
    return sum(abs(run.length(p) - recorded.own(took)) for p, took in recorded.seconds.items())


@settings(deadline=None, max_examples=40)
@given(steps())
def test_contention_can_be_divided_out_of_recorded_durations(step):
    """A step recorded with contention is run as it was recorded."""
    engine = engine_of(step, H100)
    run = engine.run()
    ops = tuple(
        replace(op, seconds=engine.device.launch + run.length((0, n)))
        for n, op in enumerate(step.steps[0].ops)
    )
    recorded = engine_of(replace(step, steps=(replace(step.steps[0], ops=ops),)))
    again = recorded.decontended()
    assert unexplained(again, recorded) <= unexplained(recorded, recorded) * (1 + 1e-9)
    found, given = again.seconds, recorded.seconds
    assert all(found[place] <= given[place] * (1 + 1e-9) for place in found)
    known = recorded.decontended(engine.seconds)
    assert known.seconds == pytest.approx(engine.seconds, rel=1e-3)


def test_waiting_that_contention_explains_is_taken_off():
    """What a recorded collective takes is what it takes alone, contention, and waiting."""
    ops = Ops("bf16", phase="backward")
    first = ops.gemm("product", 8192, 8192, 8192)
    ops.collective("all_reduce", 64 << 20, after=-1)
    graph = StepGraph("late", 8, (RankStep(tuple(range(8)), tuple(ops.ops)),))
    engine = engine_of(graph)
    run, place = engine.run(), (0, first + 1)
    extra = 2 * run.length(place)  # beyond what contention makes of it
    recorded = tuple(
        replace(op, seconds=engine.device.launch + run.length((0, n)))
        for n, op in enumerate(ops.ops)
    )
    late = replace(recorded[1], waiting=extra)
    traced = engine_of(
        replace(graph, steps=(replace(graph.steps[0], ops=(recorded[0], late)),)),
    )
    found = traced.decontended(engine.seconds)
    total = run.length(place) + extra
    assert found.run().length(place) + found.waiting(place) == pytest.approx(total, rel=1e-3)
    assert found.seconds[place] == pytest.approx(engine.seconds[place], rel=1e-3)
    assert found.waiting(place) > 0.9 * extra


def test_a_collective_that_waits_holds_its_units_and_moves_afterwards():
    waits = replace(moves(1.0), waiting=2.0)
    engine = engine_of(step_of(waits, ranks=2), MACHINE.resized(2))
    assert engine.run().span((0, 0)) == pytest.approx((0.0, 3.0))


def test_recorded_durations_are_repriced_on_streams_and_on_the_host():
    work = Op("load", "host", seconds=3.0)
    engine = engine_of(step_of(work, kernel("late", 1.0), ranks=1), MACHINE.resized(1))
    assert engine.run().seconds == pytest.approx(4.0, rel=1e-4)
    twice = engine.repriced(Prices(engine.platform), recorded=2.0)
    assert twice.run().seconds == pytest.approx(8.0, rel=1e-4)


def test_a_stream_idles_before_a_pause_ends():
    paused = replace(kernel("late", 1.0), pause=2.0)
    run = engine_of(step_of(paused, ranks=1), MACHINE.resized(1)).run()
    assert run.span((0, 0)) == pytest.approx((2.0, 3.0))


def test_ranks_that_wait_for_each_other_are_named():
    other = Collective("all_reduce", 64)
    first = (moves(1), moves(1, what=other, stream="comm"))
    second = (moves(1, what=other), moves(1, stream="comm"))
    steps_ = tuple(RankStep((rank,), ops) for rank, ops in enumerate((first, second)))
    crossed = StepGraph("crossed", 2, steps_)
    with pytest.raises(WorkloadError):
        engine_of(crossed, MACHINE).run()


# --- sharing a device --------------------------------------------------------------------------


def overlapped(cost=PRODUCT, kind="all_gather", nbytes=256 << 20):
    kernel_op = kernel("kernel", None, cost=cost)
    return step_of(moves(None, what=Collective(kind, nbytes)), kernel_op, ranks=8)


def test_a_kernel_next_to_a_collective_takes_longer():
    engine = engine_of(overlapped())
    alone = engine.run(pressure=0).span((0, 1))
    shared = engine.run().span((0, 1))
    assert shared[1] - shared[0] > 1.02 * (alone[1] - alone[0])


@settings(deadline=None, max_examples=30)
@given(steps(), steps(), st.sampled_from((0.0, 1.0, 2.0)))
def test_classes_that_never_meet_take_what_they_take_alone(one, other, pressure):
    """Two nodes, each with a step of its own: nothing of one is contended by the other."""
    machine = platform("h100-8x2")
    groups = {"one": Group(8, 1, tuple(range(8))), "other": Group(8, 1, tuple(range(8, 16)))}

    def grouped(step, name):
        return tuple(
            op
            if op.collective is None
            else replace(op, collective=replace(op.collective, group=name))
            for op in step.steps[0].ops
        )

    parts = {"one": grouped(one, "one"), "other": grouped(other, "other")}
    ranks = {name: group.ranks for name, group in groups.items()}

    def spans(*names):
        idle = [RankStep(ranks[name], ()) for name in parts if name not in names]
        made = [RankStep(ranks[name], parts[name]) for name in names]
        engine = engine_of(StepGraph("nodes", 16, (*made, *idle), groups), machine)
        run = engine.run(pressure=pressure)
        return [[run.span((c, n)) for n in range(len(parts[name]))] for c, name in enumerate(names)]

    together = spans("one", "other")
    for mine, (alone,) in zip(together, (spans("one"), spans("other")), strict=True):
        assert np.array(mine) == pytest.approx(np.array(alone), rel=1e-6, abs=1e-9)


def test_a_kernel_asks_for_no_more_memory_than_there_is():
    """A kernel recorded to take less than its bytes need runs alone as long as it was recorded."""
    engine = engine_of(step_of(kernel("cached", 1e-4, cost=STREAMING), moves(1e-5), ranks=8))
    assert engine.run().length((0, 0)) == pytest.approx(1e-4, rel=0.2)


def test_a_kernel_takes_longer_the_more_units_collectives_hold():
    engine = engine_of(overlapped())
    lengths = [engine.run(pressure=each).length((0, 1)) for each in (1.0, 2.0, 4.0)]
    assert lengths == sorted(set(lengths))


def test_engines_leave_units_to_a_product():
    engine = engine_of(overlapped(), MI300X)
    took = engine.seconds[0, 0]
    by_units = engine.run({(0, 0): Execution(took)}).span((0, 1))
    by_engines = engine.run({(0, 0): Execution(took, 0, by_engines=True)}).span((0, 1))
    assert by_engines[1] - by_engines[0] < by_units[1] - by_units[0]


def test_next_to_a_collective_that_holds_all_units_nothing_runs():
    engine = engine_of(overlapped(STREAMING), MACHINE)
    took = engine.seconds
    run = engine.run({(0, 0): Execution(took[0, 0], MACHINE.require_device().units)})
    assert run.seconds == pytest.approx(took[0, 0] + took[0, 1], rel=1e-6)


@pytest.mark.parametrize("tokens", [128, 1024, 8192])
@pytest.mark.parametrize("machine", [H100, MI300X], ids=lambda each: each.name)
def test_a_serial_collective_takes_nothing_off_a_product(tokens, machine):
    """Tiles that run when all units are taken go on afterwards."""
    cost = Cost("gemm", (tokens, 4096, 4096), "bf16", 2.0 * tokens * 4096**2, 1 << 20)
    step = step_of(
        kernel("mm", None, cost=cost), moves(None, what=Collective("all_gather", 1 << 20)), ranks=8
    )
    engine = engine_of(step, machine)
    took = engine.seconds
    run = engine.run({(0, 1): Execution(took[0, 1], machine.require_device().units)})
    assert run.seconds >= (took[0, 0] + took[0, 1]) * 0.999


@pytest.mark.parametrize("cost", [PRODUCT, STREAMING], ids=["product", "streaming"])
def test_kernels_on_two_streams_share_one_device(cost):
    both = step_of(
        kernel("a", None, cost=cost, stream="one"), kernel("b", None, cost=cost), ranks=1
    )
    engine = engine_of(both, H100.resized(1))
    alone = engine.seconds[0, 0]
    assert engine.run().seconds == pytest.approx(2 * alone, rel=0.15)


@pytest.mark.parametrize("sender", [0, 1])
def test_two_messages_share_the_port_of_their_sender(sender):
    def message(kind, peer, stream):
        what = Collective(kind, 1 << 28, group="all", peer=peer)
        return Op(kind, "collective", stream, collective=what)

    sends = tuple(message("send", 1 - sender, stream) for stream in ("one", "two"))
    receives = tuple(message("recv", sender, stream) for stream in ("one", "two"))
    ops = (sends, receives) if sender == 0 else (receives, sends)
    steps_ = tuple(RankStep((rank,), each) for rank, each in enumerate(ops))
    engine = engine_of(StepGraph("two", 2, steps_, {"all": Group(2)}), MACHINE.resized(2))
    assert engine.run().seconds == pytest.approx(2 * engine.seconds[0, 0], rel=0.05)


def test_messages_that_arrive_from_two_ranks_do_not_share_what_leaves_one():
    def message(kind, peer, stream):
        what = Collective(kind, 1 << 26, group="all", peer=peer)
        return Op(kind, "collective", stream, collective=what)

    receiver = RankStep((0,), (message("recv", 1, "one"), message("recv", 2, "two")))
    senders = [RankStep((rank,), (message("send", 0, "out"),)) for rank in (1, 2)]
    step = StepGraph("fan-in", 3, (receiver, *senders), {"all": Group(3)})
    engine = engine_of(step, MACHINE.resized(3))
    assert engine.run().seconds < 1.5 * engine.seconds[0, 0]


def test_collectives_of_two_groups_share_the_links_of_a_rank():
    ops = (
        moves(None, what=Collective("all_reduce", 1 << 28), stream="one"),
        moves(None, what=Collective("all_gather", 1 << 28), stream="two"),
    )
    engine = engine_of(step_of(*ops, ranks=8))
    assert engine.run().seconds > 0.8 * sum(engine.seconds.values())


@pytest.mark.parametrize(("strategy", "within"), [("concurrent", 3), ("priority", 3), ("dma", 3)])
def test_pairs_reach_the_percent_of_ideal_that_their_schedules_reach(strategy, within):
    """The engine lumps a collective into one flow; c3 simulates every transfer of every rank."""
    pricer = Pricer(MI300X)
    found, expected = [], []
    for scenario in SCENARIOS[::3]:
        gemm = scenario.gemm
        alone = pricer.compute(gemm), pricer.comm(scenario)
        nbytes = 2 * (gemm.m * gemm.k + gemm.n * gemm.k + gemm.m * gemm.n)
        cost = Cost(
            "gemm", (gemm.m, gemm.n, gemm.k), "bf16", 2.0 * gemm.m * gemm.n * gemm.k, nbytes
        )
        product = kernel("gemm", alone[0], cost=cost)
        comm = moves(alone[1], what=Collective(scenario.collective, scenario.nbytes))
        first = strategy == "priority"
        engine = engine_of(
            step_of(*((comm, product) if first else (product, comm)), ranks=8), MI300X
        )
        executions = {}
        if strategy == "dma":
            executions = {(0, 1): Execution(pricer.engines(scenario), 0, by_engines=True)}
        took = engine.run(executions).seconds
        ideal = sum(alone) / max(alone) - 1
        found.append(100 * (sum(alone) / took - 1) / ideal)
        expected.append(100 * (sum(alone) / pricer.pair(scenario, Strategy(strategy)) - 1) / ideal)
    assert np.mean(found) == pytest.approx(np.mean(expected), abs=within)
    assert np.abs(np.subtract(found, expected)).max() < 4 * within


# --- physics -----------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(steps())
def test_an_execution_that_changes_nothing_changes_nothing(step):
    engine = engine_of(step)
    same = {place: Execution(engine.seconds[place]) for place in engine.layout.launch_row}
    assert engine.run(same).seconds == engine.run().seconds


@settings(deadline=None, max_examples=30)
@given(steps(streaming=False))
def test_units_that_are_taken_from_products_never_make_a_step_shorter(step):
    engine = engine_of(step)
    seconds = [engine.run(pressure=pressure).seconds for pressure in (0, 1, 2, 4)]
    # Fewer tiles at once crowd the cache less and free memory for a collective: a little is saved.
    assert all(more >= 0.93 * less for less, more in pairwise(seconds))


@settings(deadline=None, max_examples=30)
@given(steps())
def test_contention_never_makes_a_step_shorter(step):
    for machine in (H100, MI300X):
        engine = engine_of(step, machine)
        assert engine.run().seconds >= engine.run(pressure=0).seconds * (1 - 1e-9)


def test_an_empty_step_takes_no_time():
    assert engine_of(step_of(ranks=1), H100.resized(1)).run().seconds == 0


@settings(deadline=None, max_examples=30)
@given(steps(), st.sampled_from((0.5, 3.0)))
def test_time_scales_with_all_durations_and_rates(step, times):
    """A device that is ``times`` slower in everything takes ``times`` as long."""
    engine = engine_of(step, MACHINE)
    device = MACHINE.require_device()
    kernels = replace(device.kernels, l2_rate=device.kernels.l2_rate / times)
    flops = {
        name: replace(each, achieved=each.achieved / times, rated=each.rated / times)
        for name, each in device.flops.items()
    }
    power = replace(
        device.power,
        memory_byte=device.power.memory_byte * times,
        link_byte=device.power.link_byte * times,
    )
    slower = replace(
        device,
        power=power,
        memory_rate=device.memory_rate / times,
        unit_copy_rate=device.unit_copy_rate / times,
        kernels=kernels,
        flops=flops,
    )
    levels = tuple(replace(level, rate=level.rate / times) for level in MACHINE.levels)
    machine = replace(MACHINE, name=f"slower{times}", device=slower, levels=levels)
    ops = tuple(
        replace(op, seconds=times * engine.seconds[0, n]) for n, op in enumerate(step.steps[0].ops)
    )
    scaled = replace(step, steps=(replace(step.steps[0], ops=ops),))
    found = StepEngine(scaled, machine, Prices(machine), host=NO_HOST).run().seconds
    assert found == pytest.approx(times * engine.run().seconds, rel=1e-6)


@pytest.mark.parametrize(
    ("cost", "resource"), [(PRODUCT, "compute units"), (STREAMING, "memory bandwidth")]
)
def test_what_ops_lose_to_each_other_has_a_reason(cost, resource):
    run = engine_of(overlapped(cost, nbytes=1 << 30), H100).run()
    found = {each.name: each for each in contention(run, 0)}
    assert found["kernel"].next_to == "all_gather"
    assert found["kernel"].resource == resource
    start, end = run.span((0, 1))
    assert found["kernel"].seconds == pytest.approx(end - start - run.engine.seconds[0, 1])


def test_ops_that_run_alone_lose_nothing():
    step = step_of(kernel("a", None, cost=PRODUCT), moves(None, 0), ranks=8)
    assert contention(engine_of(step).run(), 0) == ()


# --- timelines ---------------------------------------------------------------------------------


def test_the_kernels_of_a_queue_are_the_ops_of_its_stream_in_order():
    step = generate("gpt2", 8, {"layers": "2"})
    timeline = engine_of(step, host=None).run().timeline()
    compute = timeline.of(queue="stream0", kind=(CommandKind.KERNEL, CommandKind.COPY))
    stream = step.steps[0].ops[0].stream
    names = [op.name for op in step.steps[0].ops if op.stream == stream and op.kind != "host"]
    assert [compute.names[n] for n in compute.name.tolist()] == names


def test_every_class_of_ranks_stands_for_its_ranks():
    step = generate("gpt2", 8, {"pp": "4", "batch": "8"})
    timeline = engine_of(step).run().timeline()
    assert timeline.represents.sum() == 8
    assert (timeline.end >= timeline.start).all()
