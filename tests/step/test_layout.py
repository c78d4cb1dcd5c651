"""A step laid out: hosts run ahead, streams wait for each other, ranks meet."""

import dataclasses

import pytest

from weft.errors import WorkloadError
from weft.hardware import platform
from weft.hardware.measured import TorchHost
from weft.schedule import CommandKind, Cost, Group
from weft.step import NO_HOST, Collective, HostModel, Op, RankStep, StepEngine, StepGraph, check
from weft.step.durations import host_of
from weft.step.matching import split_classes

H100 = platform("h100-8")
LAUNCH = H100.require_device().launch


class Fixed:
    """A kernel takes its cost's seconds, a collective a nanosecond a byte."""

    def kernel(self, cost):
        return cost.seconds

    def collective(self, what, ranks):  # noqa: ARG002 - as the protocol says
        return what.nbytes * 1e-9


def kernel(seconds, **more):
    return Op("work", cost=Cost("gemm", seconds=seconds), **more)


def all_reduce(nbytes, *after, **more):
    what = Collective("all_reduce", nbytes, **more)
    return Op("all_reduce", "collective", "comm", collective=what, after=after)


def seconds_of(graph, host=NO_HOST):
    return timeline_of(graph, host).makespan


def timeline_of(graph, host=NO_HOST):
    return StepEngine(graph, H100, Fixed(), host=host).run(pressure=0).timeline()


def alike(*ops, num_ranks=2):
    return StepGraph("step", num_ranks, (RankStep(tuple(range(num_ranks)), ops),))


def test_kernels_of_a_stream_follow_each_other():
    host_launch = H100.require_device().host_launch
    assert seconds_of(alike(kernel(1e-3), kernel(2e-3))) == pytest.approx(3e-3 + host_launch)


def test_a_collective_hides_behind_a_kernel_that_does_not_need_it():
    hidden = alike(kernel(1e-3), all_reduce(1_000_000, 0), kernel(2e-3))
    needed = alike(kernel(1e-3), all_reduce(1_000_000, 0), kernel(2e-3, after=(1,)))
    assert seconds_of(needed) - seconds_of(hidden) == pytest.approx(1e-3, rel=0.01)


def test_a_slow_host_decides_the_step():
    ops = [kernel(1e-6)] * 100
    slow = seconds_of(alike(*ops), HostModel(gap=50e-6, before=0, after=0))
    assert slow == pytest.approx(100 * (50e-6 + H100.require_device().host_launch), rel=0.02)


def test_the_host_runs_ahead_of_long_kernels():
    ops = [kernel(1e-3)] * 10
    assert seconds_of(alike(*ops), HostModel()) == pytest.approx(10e-3, rel=0.01)


def test_a_blocking_copy_holds_the_host_up():
    free = alike(kernel(1e-3), Op("issue", "host", host=1e-3), kernel(1e-3))
    held = alike(kernel(1e-3, blocking=True), Op("issue", "host", host=1e-3), kernel(1e-3))
    assert seconds_of(held) - seconds_of(free) == pytest.approx(1e-3, rel=0.02)


@pytest.mark.parametrize("stream", ["compute", ""])
def test_a_host_op_waits_for_what_it_reads_on_any_stream(stream):
    read = alike(
        kernel(1e-3, stream=stream), Op("item", "host", host=1e-3, after=(0,)), kernel(1e-3)
    )
    assert seconds_of(read) == pytest.approx(3e-3, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "classes"),
    [
        *(
            ("all_reduce", each)
            for each in (((0, 2), (1,), (3,)), ((2, 0, 1), (3,)), ((1, 2), (0,), (3,)))
        ),
        ("message", ((0, 2), (1,), (3,))),
    ],
)
def test_equal_ranks_that_meet_different_ones_are_laid_out_apart(kind, classes):
    """Rank 3 is late, and of its equal peers only rank 2 waits for it."""

    def ops(rank):
        first = kernel(5e-3 if rank == 3 else 1e-3)
        if kind == "all_reduce":
            return first, all_reduce(1000, 0, group="tp")
        what = Collective("send", 1000, group="tp", peer=1 - rank % 2)
        both = (what, dataclasses.replace(what, kind="recv"))
        return first, *(
            Op("m", "collective", each.kind, collective=each, after=(0,)) for each in both
        )

    groups = {"tp": Group(2)}
    given = StepGraph("late", 4, tuple(RankStep(ranks, ops(ranks[0])) for ranks in classes), groups)
    apart = StepGraph("late", 4, tuple(RankStep((rank,), ops(rank)) for rank in range(4)), groups)
    found = split_classes(given)
    check(found)
    assert seconds_of(found) == pytest.approx(seconds_of(apart))
    timeline = timeline_of(found)
    ends = {step.ranks: timeline.of(rank=n).makespan for n, step in enumerate(found.steps)}
    assert ends[2,] > 5e-3
    assert max(end for ranks, end in ends.items() if 0 in ranks) < 2e-3


def test_classes_that_meet_the_same_ones_stay_as_they_are():
    steps = (
        RankStep((0, 2), (kernel(1e-3), all_reduce(1000, 0, group="tp"))),
        RankStep((1, 3), (kernel(5e-3), all_reduce(1000, 0, group="tp"))),
    )
    graph = StepGraph("pairs", 4, steps, {"tp": Group(2)})
    assert split_classes(graph) is graph


def test_the_fast_rank_waits_for_the_slow_one():
    steps = (
        RankStep((0,), (kernel(1e-3), all_reduce(1000, 0))),
        RankStep((1,), (kernel(5e-3), all_reduce(1000, 0))),
    )
    timeline = timeline_of(StepGraph("uneven", 2, steps))
    assert timeline.makespan == pytest.approx(5e-3, rel=0.01)
    assert timeline.waiting[0] == pytest.approx(4e-3, rel=0.02)
    assert timeline.communication.max() == pytest.approx(0, abs=5e-6)


def test_stages_of_a_pipeline_hand_over():
    def message(kind, peer, *after):
        what = Collective(kind, 1000, group="pp", peer=peer)
        return Op(kind, "collective", "comm", collective=what, after=after)

    first = RankStep((0,), (kernel(1e-3), message("send", 1, 0)))
    second = RankStep((1,), (message("recv", 0), kernel(2e-3, after=(0,))))
    graph = StepGraph("pipeline", 2, (first, second), {"pp": Group(2)})
    assert seconds_of(graph) == pytest.approx(3e-3, rel=0.01)


def test_an_uneven_exchange_counts_as_its_busiest_rank():
    def exchange(*splits):
        what = Collective("all_to_all", sum(splits), splits=splits)
        return Op("exchange", "collective", "comm", collective=what)

    steps = RankStep((0,), (exchange(0, 1_000_000),)), RankStep((1,), (exchange(1000, 0),))
    timeline = timeline_of(StepGraph("uneven", 2, steps))
    assert timeline.makespan == pytest.approx(2e-3, rel=0.01)  # as an even one of twice as much


def test_a_missing_collective_is_named():
    steps = RankStep((0,), (all_reduce(8),)), RankStep((1,), (kernel(1e-3),))
    with pytest.raises(WorkloadError, match="waits for rank 1, which never comes"):
        seconds_of(StepGraph("odd", 2, steps))


def test_collectives_of_different_kinds_are_no_meeting():
    gather = Op("gather", "collective", collective=Collective("all_gather", 8))
    with pytest.raises(WorkloadError, match="all_gather and all_reduce"):
        seconds_of(
            StepGraph("odd", 2, (RankStep((0,), (all_reduce(8),)), RankStep((1,), (gather,))))
        )


def test_a_message_to_nobody_is_named():
    what = Collective("send", 8, group="pp", peer=5)
    steps = (RankStep((0, 1), (Op("send", "collective", collective=what),)),)
    with pytest.raises(WorkloadError, match="position 5 of pp, which has 2"):
        seconds_of(StepGraph("odd", 2, steps, {"pp": Group(2)}))


def test_splits_for_other_ranks_are_refused():
    what = Collective("all_to_all", 8, splits=(4, 4, 4))
    with pytest.raises(WorkloadError, match="3 splits for 2 ranks"):
        seconds_of(alike(Op("exchange", "collective", collective=what)))


def test_equal_ranks_are_simulated_once():
    timeline = timeline_of(alike(kernel(1e-3), all_reduce(1000, 0), num_ranks=1024))
    assert (timeline.kind == CommandKind.COPY).sum() == 1


def test_a_measured_duration_stands_before_the_price():
    op = dataclasses.replace(kernel(1e-3), seconds=7e-3)
    assert seconds_of(alike(op)) == pytest.approx(7e-3, rel=0.01)


def test_a_measured_overhead_below_zero_counts_as_none():
    machine = platform("cpu")
    quick = dataclasses.replace(machine, torch=TorchHost(forward=-5e-6, backward=2e-6))
    host = host_of(quick)
    assert host.seconds(kernel(1e-3)) == 0.0
    assert host.seconds(kernel(1e-3, phase="backward")) == 2e-6
    engine = StepEngine(alike(kernel(1e-3), kernel(2e-3)), quick, Fixed(), host=host)
    assert engine.run(pressure=0).timeline().makespan >= 3e-3
