"""DMA engines and the host that feeds them: what each step of a copy costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.paper import (
    DEVICE,
    DMA,
    GB,
    MB,
    US,
    bare,
    close,
    hear,
    launch,
    machine,
    made,
    matmul,
    move,
    queue,
    spans,
    tell,
    without_costs,
)
from weft.collectives import collective
from weft.hardware import Level, platform
from weft.schedule import Broadcast, CommandKind, Copy, Flag, Slice, Submit, Swap
from weft.simulator import simulate

MOVING = 1000 * US  # 10 MB at 10 GB/s
HOLD = Flag(0, 3)
ONE = (move(0, 1, 10 * MB),)


def fed(*commands, copies=ONE, hold=None):
    """A host that hands an engine its copies and a signal, then does ``commands``."""
    engine = queue("copy0", *copies, tell(0))
    host = queue("host", Submit(0, "copy0", len(copies) + 1, hold), *commands)
    return engine, host


def test_a_copy_passes_control_doorbell_fetch_start_bytes_and_sync():
    found = spans(made(2, {0: fed(hear())}), machine())
    assert found[0, "host", 0] == (0, close(3 * US))  # control 1, doorbell 2
    assert found[0, "copy0", 0] == (close(6 * US), close(10 * US + MOVING))  # fetch 3, start 4
    assert found[0, "host", 1] == (close(3 * US), close(15 * US + MOVING))  # sync 5


def test_control_is_paid_by_the_command_and_the_doorbell_once():
    copies = (move(0, 1, 10 * MB),) * 3
    found = spans(made(2, {0: fed(copies=copies)}), machine())
    assert found[0, "host", 0] == (0, close(5 * US))
    assert found[0, "copy0", 2][1] == close(5 * US + 3 * US + 3 * (4 * US + MOVING))


def test_a_busy_engine_fetches_the_next_submission_meanwhile():
    host = queue("host", Submit(0, "copy0", 1), Submit(0, "copy0", 1))
    engine = queue("copy0", move(0, 1, 10 * MB), move(0, 1, 10 * MB))
    found = spans(made(2, {0: (engine, host)}), machine())
    assert found[0, "host", 1][1] == close(6 * US)
    assert found[0, "copy0", 1][0] == found[0, "copy0", 0][1]


def test_an_engine_that_is_done_early_waits_for_the_next_fetch():
    host = queue("host", Submit(0, "copy0", 1), Submit(0, "copy0", 1))
    engine = queue("copy0", move(0, 1, 100), move(0, 1, 10 * MB))
    dma = replace(DMA, start=0.0)
    found = spans(made(2, {0: (engine, host)}), machine(device=replace(DEVICE, dma=dma)))
    assert found[0, "copy0", 0][1] == close(6 * US + 100 / (10 * GB))
    assert found[0, "copy0", 1][0] == close(6 * US + 3 * US)  # the second doorbell, and its fetch


def test_an_engine_starves_until_the_next_submission():
    host = queue("host", Submit(0, "copy0", 1), hear(5), Submit(0, "copy0", 1))
    engine = queue("copy0", move(0, 1, 10 * MB), move(0, 1, 10 * MB))
    late = (queue("stream0", matmul(5000 * US), tell(0, 5)),)
    found = spans(made(2, {0: (engine, host), 1: late}), machine(device=without_costs()))
    assert found[0, "copy0", 0] == (0, close(MOVING))
    assert found[0, "copy0", 1] == (close(5000 * US), close(5000 * US + MOVING))


def test_a_copy_of_several_packets_starts_as_often():
    copies = (move(0, 1, 25 * MB),)
    found = spans(made(2, {0: fed(copies=copies)}), machine())
    assert found[0, "copy0", 0][1] == close(6 * US + 3 * 4 * US + 2.5 * MOVING)


def with_dma(**changed):
    return machine(device=replace(DEVICE, dma=replace(DMA, **changed)))


def test_a_signal_waits_once_until_all_copies_before_it_have_landed():
    copies = (move(0, 1, 10 * MB), move(0, 1, 10 * MB))
    engine = queue("copy0", *copies, tell(0), tell(0))
    host = queue("host", Submit(0, "copy0", 4))
    found = spans(made(2, {0: (engine, host)}), with_dma(drain=6 * US))
    landed = found[0, "copy0", 1][1]
    assert landed == close(4 * US + 3 * US + 2 * (4 * US + MOVING))  # the copies do not wait
    assert found[0, "copy0", 2] == (close(landed), close(landed + 6 * US))
    assert found[0, "copy0", 3][1] == close(landed + 6 * US)  # nothing was written in between


def test_the_host_looks_at_one_completion_after_another():
    engines = [queue(f"copy{n}", move(0, 1, 10 * MB), tell(0, n)) for n in range(2)]
    submits = [Submit(0, f"copy{n}", 2) for n in range(2)]
    late = (queue("stream0", matmul(5000 * US), tell(0, 5)),)
    host = queue("host", *submits, hear(5), hear(0), hear(1))
    found = spans(made(2, {0: (*engines, host), 1: late}), with_dma(observe=2 * US))
    begun = found[0, "host", 2][1]  # both completions are there by now
    assert found[0, "host", 3] == (close(begun), close(begun + 2 * US))
    assert found[0, "host", 4] == (close(begun + 2 * US), close(begun + 4 * US))


def test_a_completion_that_comes_late_costs_no_further_look():
    engine, host = fed(hear())
    plain, looked = (
        spans(made(2, {0: (engine, host)}), with_dma(observe=seconds)) for seconds in (0.0, 2 * US)
    )
    assert plain == looked


@pytest.mark.parametrize("host_first", [False, True])
def test_what_is_prelaunched_lies_before_time_zero(host_first):
    queues = fed(hear(5), tell(0, 3), hear(), hold=HOLD)
    ranks = {0: queues[::-1] if host_first else queues, 1: (queue("host", tell(0, 5)),)}
    found = spans(made(2, ranks), machine())
    assert found[0, "host", 0] == (close(-3 * US), 0)
    assert found[0, "host", 1] == (0, 0)  # threads of one node share its memory
    assert found[0, "copy0", 0] == (close(7 * US), close(11 * US + MOVING))  # release, start
    assert found[0, "host", 3][1] == close(16 * US + MOVING)
    assert simulate(made(2, ranks), machine()).seconds == close(16 * US + MOVING)


def test_prelaunched_submissions_are_laid_end_to_end():
    host = queue("host", Submit(0, "copy0", 1, HOLD), Submit(0, "copy1", 1, HOLD), tell(0, 3))
    engines = (queue(f"copy{n}", move(0, 1, 10 * MB)) for n in range(2))
    found = spans(made(2, {0: (*engines, host)}), machine())
    assert found[0, "host", 0] == (close(-6 * US), close(-3 * US))
    assert found[0, "host", 1] == (close(-3 * US), 0)
    assert found[0, "copy0", 0][0] == found[0, "copy1", 0][0] == close(7 * US)


@pytest.mark.parametrize("host_first", [False, True])
def test_it_does_not_matter_which_queue_is_written_first(host_first):
    engine, host = fed(hear())
    queues = (host, engine) if host_first else (engine, host)
    for network in (machine(), machine(device=without_costs())):
        both = [made(2, {0: order}) for order in (queues, (engine, host))]
        assert spans(both[0], network) == spans(both[1], network)


def test_an_engine_writes_a_broadcast_twice():
    dsts = (Slice(1, "y", 0, 10 * MB), Slice(2, "y", 0, 10 * MB))
    cast = Broadcast(Slice(0, "x", 0, 10 * MB), dsts)
    other = queue("stream0", launch((move(0, 0, 1000),), units=1))
    work = made(3, {0: (queue("copy0", cast), other)})
    found = spans(work, machine(3, rate=100 * GB, device=without_costs()))
    assert found[0, "copy0", 0][1] == close(2 * MOVING)


def test_swaps_and_broadcasts_have_rates_of_their_own():
    swap = Swap(Slice(0, "x", 0, 10 * MB), Slice(1, "y", 0, 10 * MB))
    cast = Broadcast(swap.a, (Slice(1, "y", 0, 10 * MB), Slice(2, "y", 0, 10 * MB)))
    dma = replace(without_costs().require_dma(), paired_rate=5 * GB, swap_rate=4 * GB)
    network = machine(3, rate=100 * GB, device=replace(without_costs(), dma=dma))
    for command, times in ((swap, 5), (cast, 4), (*ONE, 1)):
        work = made(3, {0: (queue("copy0", command),)})
        assert simulate(work, network).seconds == close(times * MOVING)


@pytest.mark.parametrize(("sources", "waits"), [((0, 0, 0), 0), ((0, 1, 1), 1), ((0, 1, 2), 2)])
def test_a_copy_behind_one_of_another_source_waits_for_its_bytes(sources, waits):
    dma = replace(without_costs().require_dma(), other_source=1e-3)
    network = machine(rate=100 * GB, device=replace(without_costs(), dma=dma))
    copies = (
        Copy(Slice(0, "x", n * MB, MB), Slice(1, "y", to * MB, MB)) for to, n in enumerate(sources)
    )
    seconds = simulate(made(2, {0: (queue("copy0", *copies),)}), network).seconds
    assert seconds == close(3 * MOVING / 10 + waits * 1e-3)


def test_an_engine_writes_both_sides_of_a_swap():
    swap = Swap(Slice(0, "x", 0, 10 * MB), Slice(1, "y", 0, 10 * MB))
    work = made(2, {0: (queue("copy0", swap),)})
    network = machine(rate=100 * GB, device=without_costs())
    assert simulate(work, network).seconds == close(2 * MOVING)


def test_queues_beyond_the_engines_share_them():
    queues = tuple(queue(f"copy{n}", move(0, n + 1, 10 * MB)) for n in range(4))
    network = machine(5, rate=100 * GB, device=without_costs())
    assert simulate(made(5, {0: queues[:2]}), network).seconds == close(MOVING)
    assert simulate(made(5, {0: queues}), network).seconds == close(2 * MOVING)


def test_a_host_pays_to_launch_each_kernel():
    stream = queue("stream0", matmul(1 * US), tell(0, 1), launch(units=1))
    host = queue("host", Submit(0, "stream0", 3))
    found = spans(made(1, {0: (stream, host)}), machine(1))
    assert found[0, "host", 0] == (0, close(2 * DEVICE.host_launch))
    assert found[0, "stream0", 0][0] == close(2 * DEVICE.host_launch)


def test_a_submission_costs_nothing_on_a_bare_network():
    host = queue("host", Submit(0, "nic0", 1), Submit(0, "nic0", 1))
    sends = queue("nic0", move(0, 1, 10 * MB), move(0, 1, 10 * MB))
    for order in ((host, sends), (sends, host)):
        found = simulate(made(2, {0: order}), bare(Level("switch", 2, 10 * GB)))
        assert found.seconds == close(2 * MOVING)


def test_a_device_without_engines_feeds_streams_all_the_same():
    stream, host = queue("stream0", matmul(1 * US)), queue("host", Submit(0, "stream0", 1))
    without = machine(1, device=replace(DEVICE, dma=None))
    found = simulate(made(1, {0: (stream, host)}), without)
    assert found.seconds == close((6 + 1 + 1) * US)


def test_a_signal_of_the_host_reaches_a_stream_by_a_store():
    ranks = {0: (queue("host", tell(0, 1)), queue("stream0", hear(1)))}
    assert simulate(made(1, ranks), machine(1)).seconds == close(DEVICE.release)


@pytest.mark.parametrize(("algorithm", "queues"), [("dma", 7), ("dma-bcst", 4), ("dma-b2b", 1)])
def test_prelaunching_takes_control_and_schedule_out_of_the_time(algorithm, queues):
    network = platform("mi300x-8")
    plain, ahead = (
        simulate(collective("all_gather", name, num_ranks=8, nbytes=8192), network)
        for name in (algorithm, f"{algorithm}+prelaunch")
    )
    submits, held = plain.of(kind=CommandKind.SUBMIT), ahead.of(kind=CommandKind.SUBMIT)
    control = (submits.end - submits.start).sum()
    assert held.end.max() == 0
    assert -held.start.min() == pytest.approx(control)
    # All engines go on at once, so the host looks at all completions when the first is there.
    dma, release = network.require_device().require_dma(), network.require_device().release
    (copies,) = {int(count) for count in held.count - 1}
    engine = copies * (dma.start + 1024 / dma.engine_rate) + dma.drain
    looking = (8 * queues - 1) * dma.observe
    assert ahead.seconds == pytest.approx(release + engine + dma.sync + looking, rel=0.01)


@pytest.mark.parametrize(("algorithm", "ratio"), [("dma-bcst", 0.39), ("dma-b2b", 1 / 7)])
def test_large_all_gathers_pay_for_fewer_engines(algorithm, ratio):
    # Half or a seventh of the engines' rate; and of the first, 37.5 of 48 GB/s for turning.
    network = platform("mi300x-8")
    plain, other = (
        simulate(collective("all_gather", name, num_ranks=8, nbytes=1 << 30), network).seconds
        for name in ("dma", algorithm)
    )
    assert plain / other == pytest.approx(ratio, rel=0.05)
