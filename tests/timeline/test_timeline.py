import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.spans import called, copy, handshake, overlapping, piece, schedule, submitted, timed
from weft.collectives import KINDS, algorithms, collective
from weft.hardware import platform
from weft.schedule import (
    SELF,
    CommandKind,
    Encode,
    Flag,
    Kernel,
    Launch,
    Reduce,
    Signal,
    Swap,
    Wait,
    expand,
)
from weft.simulator import simulate
from weft.timeline import Activity, Timeline


def test_makespan_counts_from_the_first_start():
    timeline = timed(schedule(("copy0", (copy(), copy()))), [(10, 11), (12, 15)])
    assert timeline.makespan == timeline.seconds == 5
    assert timeline.start.tolist() == [0, 2]


def test_held_submits_lie_before_time_zero():
    timeline = submitted(hold=True)
    assert timeline.start.min() == -5
    assert timeline.makespan == 1


def test_an_origin_given_is_time_zero():
    timeline = timed(schedule(("copy0", (copy(),))), [(10, 11)], origin=9.0)
    assert timeline.makespan == 2


def test_a_timeline_without_spans_takes_no_time():
    timeline = timed(schedule(("copy0", (copy(),))), [None])
    assert timeline.num_spans == 0
    assert timeline.makespan == 0
    assert timeline.critical_path() == ()
    assert timeline.exposed.tolist() == [0]
    assert timeline.busy() == {}


def test_rows_without_a_start_did_not_run():
    launch = Launch(((copy(), copy()),))
    timeline = timed(schedule(("stream0", (launch, copy()))), [(0, 2), (0, 1), None, (2, 3)])
    assert timeline.id.tolist() == [0, 1, 3]
    assert timeline.parent.tolist() == [-1, 0, -1]


def test_bytes_are_those_written():
    commands = (copy(100), Swap(piece(nbytes=7), piece(nbytes=7, buffer="y")), Wait(Flag(0, 0)))
    reduce = Reduce((piece(nbytes=40), piece(nbytes=40)), piece(nbytes=40, buffer="y"))
    times = [(i, i + 1) for i in range(4)]
    assert timed(schedule(("q0", (*commands, reduce))), times).nbytes.tolist() == [100, 14, 0, 40]


def test_spans_carry_the_names_of_what_ran():
    encode = Encode(piece(), piece(buffer="y"), "zfp", "float32")
    timeline = timed(schedule(("stream0", (Kernel("gemm"), encode))), [(0, 1), (1, 2)])
    assert [span.name for span in timeline.spans()] == ["gemm", "Encode zfp"]
    assert timeline.span(0).queue == "stream0"


def test_a_call_lasts_from_its_first_command_to_its_last():
    timeline = called()
    spans = {
        (s.queue, s.id): (s.start, s.end) for s in timeline.spans() if s.kind == CommandKind.CALL
    }
    assert spans == {("stream0", 1): (4, 9), ("copy0", 0): (5, 9)}


def test_waiting_to_enter_a_call_is_not_communication():
    timeline = called()
    assert timeline.overlap.tolist() == [0]
    assert timeline.exposed.tolist() == [4]


def test_a_launch_that_only_moves_data_communicates_as_a_whole():
    timeline = handshake()
    activity = {
        s.name: Activity(a) for s, a in zip(timeline.spans(), timeline.activity, strict=True)
    }
    assert activity == {
        "Launch": Activity.COMMUNICATION,
        "Copy": Activity.COMMUNICATION,
        "Signal": Activity.CONTROL,
        "Wait": Activity.WAITING,
        "after": Activity.COMPUTATION,
    }


def test_a_launch_with_a_kernel_in_it_is_only_what_it_holds():
    launch = Launch(((Kernel("slice"),), (copy(),)))
    timeline = timed(schedule(("stream0", (launch,))), [(0, 9), (1, 4), (3, 6)])
    assert timeline.computation.tolist() == [3]
    assert timeline.communication.tolist() == [3]
    assert timeline.exposed.tolist() == [2]


def test_exposed_is_communication_next_to_no_computation():
    timeline = overlapping()
    assert timeline.communication.tolist() == [4]
    assert timeline.exposed.tolist() == [3]
    assert timeline.overlap.tolist() == [1]


def test_waiting_is_time_in_which_nothing_moves():
    assert handshake().waiting.tolist() == [3, 0]


def test_busy_is_told_for_each_rank_and_queue():
    assert overlapping().busy() == {(0, "copy0"): 4, (0, "stream0"): 4}
    assert overlapping().busy("copy") == {(0, "copy0"): 4}


def test_energy_counts_the_ranks_that_are_represented():
    made = schedule(("copy0", (copy(),)))
    timeline = timed(made, [(0, 1)], joules=[2.0], represents=[8])
    assert timeline.total_joules == 16


def test_filters_keep_what_they_name():
    timeline = handshake()
    assert timeline.of(rank=1).ranks.tolist() == [1]
    assert timeline.of(rank=1).num_spans == 5
    assert timeline.of(queue="stream").num_spans == 10
    assert timeline.of(queue="stream1").num_spans == 0
    copies = timeline.of(kind=(CommandKind.COPY, CommandKind.WAIT))
    assert [s.name for s in copies.spans()] == ["Copy", "Wait", "Copy", "Wait"]
    assert copies.parent.tolist() == [-1] * 4


def test_the_critical_path_follows_signals_to_the_other_rank():
    timeline = handshake()
    path = [timeline.span(number) for number in timeline.critical_path()]
    assert [(s.rank, s.name) for s in path] == [
        (1, "Launch"),
        (1, "Copy"),
        (1, "Signal"),
        (0, "Wait"),
        (0, "after"),
    ]


def test_the_critical_path_follows_submits_to_the_host():
    timeline = submitted()
    path = [timeline.span(number) for number in timeline.critical_path()]
    assert [(s.queue, s.id) for s in path] == [("host", 0), ("host", 1), ("copy0", 1)]


def test_the_critical_path_ignores_a_signal_that_came_before_the_wait():
    made = schedule(
        ("copy0", (copy(), Signal(Flag(SELF, 0)))),
        ("stream0", (Kernel("gemm"), Wait(Flag(SELF, 0)), Kernel("after"))),
    )
    timeline = timed(made, [(0, 1), (1, 1), (0, 4), (4, 4), (4, 6)])
    path = [timeline.span(number).name for number in timeline.critical_path()]
    assert path == ["gemm", "Wait", "after"]


def test_the_second_signal_releases_a_wait_for_two():
    signals = (Signal(Flag(SELF, 0)), Signal(Flag(SELF, 0)))
    made = schedule(("copy0", signals), ("stream0", (Wait(Flag(SELF, 0), 2),)))
    assert timed(made, [(0, 1), (2, 3), (0, 3)]).released_by.tolist() == [-1, -1, 1]


@pytest.mark.parametrize("count", [0, 3])
def test_a_wait_without_its_signals_is_released_by_nothing(count):
    made = schedule(("copy0", (Signal(Flag(SELF, 0)),)), ("stream0", (Wait(Flag(SELF, 0), count),)))
    assert timed(made, [(0, 1), (0, 3)]).released_by.tolist() == [-1, -1]


TICKS = 12
intervals = st.lists(
    st.tuples(st.integers(0, TICKS), st.integers(0, TICKS)).map(sorted).map(tuple), max_size=5
)


def ticks(spans):
    """The ticks that ``spans`` cover, the plain way."""
    return {tick for start, end in spans for tick in range(start, end)}


@given(st.lists(st.tuples(intervals, intervals, intervals), min_size=1, max_size=3))
def test_exposed_and_overlap_equal_counting_ticks(ranks):
    queues = ("copy0", "copy1", "stream0")
    width = max(len(spans) for rank in ranks for spans in rank)
    kinds = (copy(), copy(), Kernel("gemm"))
    made = schedule(
        *((name, (kind,) * width) for name, kind in zip(queues, kinds, strict=True)),
        num_ranks=len(ranks),
    )
    padded = [spans + [None] * (width - len(spans)) for rank in ranks for spans in rank]
    timeline = timed(made, [pair for spans in padded for pair in spans], origin=0.0)
    for number, (first, second, kernels) in enumerate(ranks):
        moving, computing = ticks(first) | ticks(second), ticks(kernels)
        assert timeline.communication[number] == len(moving)
        assert timeline.computation[number] == len(computing)
        assert timeline.exposed[number] == len(moving - computing)
        assert timeline.overlap[number] == len(moving & computing)
        for queue, spans in zip(queues, (first, second, kernels), strict=True):
            assert timeline.busy().get((number, queue), 0) == len(ticks(spans))


@given(intervals, intervals)
def test_waiting_equals_counting_ticks(waits, moves):
    made = schedule(
        ("copy0", (copy(),) * len(moves)), ("stream0", (Wait(Flag(0, 0)),) * len(waits))
    )
    timeline = timed(made, moves + waits, origin=0.0)
    assert timeline.waiting.tolist() == [len(ticks(waits) - ticks(moves))]


def test_ranks_written_out_of_order_keep_their_weights():
    made = schedule(("copy0", (copy(),)), num_ranks=4)
    table = expand(made, [3, 1])
    ones = np.ones(2)
    timeline = Timeline.from_table(
        table, 0 * ones, ones, basis="predicted", joules=ones, represents=[1, 3]
    )
    assert timeline.ranks.tolist() == [1, 3]
    assert timeline.represents.tolist() == [3, 1]
    assert timeline.total_joules == 4


FAMILIES = [(kind, name) for kind in KINDS for name in algorithms(kind)]


@pytest.mark.parametrize(("kind", "algorithm"), FAMILIES)
def test_the_critical_path_of_a_simulation_leads_from_time_zero_to_the_end(kind, algorithm):
    node_size = 4 if algorithm == "hierarchical" else None
    made = collective(kind, algorithm, num_ranks=8, nbytes=1 << 16, node_size=node_size)
    timeline = simulate(made, platform("mi300x-8"), collapse=False)
    path = list(timeline.critical_path())
    latency = 4.1e-6  # between what an engine is told and its first byte: a release takes 4 us
    assert timeline.start[path[0]] == pytest.approx(0, abs=latency)
    assert timeline.end[path[-1]] == timeline.makespan
    gaps = timeline.start[path[1:]] - timeline.end[path[:-1]]
    assert gaps.max(initial=0) < latency
