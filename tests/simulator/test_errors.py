"""What simulate refuses, and what it says then."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulator.paper import (
    DEVICE,
    bare,
    hear,
    launch,
    machine,
    made,
    matmul,
    move,
    queue,
    tell,
)
from weft import _core
from weft.collectives import collective
from weft.errors import (
    DeadlockError,
    PlatformError,
    ScheduleError,
    TooLargeError,
    UnknownNameError,
    UsageError,
)
from weft.hardware import Level, platform
from weft.schedule import Cost, Kernel, Submit, expand
from weft.simulator import simulate
from weft.simulator.row_pricing import price
from weft.simulator.rows import platform_symmetry

NETWORK = bare(Level("switch", 2, 1e9))


def refused(error, schedule, network):
    with pytest.raises(error) as caught:
        simulate(schedule, network)
    return caught.value


def test_more_ranks_than_the_platform_has():
    schedule = collective("barrier", "direct", num_ranks=16, nbytes=0)
    error = refused(UsageError, schedule, platform("mi300x-8"))
    assert str(error) == "direct barrier has 16 ranks, mi300x-8 only 8."
    assert "larger platform" in error.hint


def test_ranks_that_do_not_fill_whole_nodes():
    schedule = collective("barrier", "direct", num_ranks=12, nbytes=0)
    error = refused(UsageError, schedule, platform("mi300x-8x2"))
    assert "12 ranks do not fill whole groups of 8" in str(error)


def test_a_wait_without_its_signal_is_named():
    ranks = {0: (queue("stream0", hear(3, 2)), queue("stream1", tell(0, 3))), 1: ()}
    error = refused(DeadlockError, made(2, ranks), NETWORK)
    assert str(error) == "1 commands can never start or end: stream0@0 #0 Wait."
    assert "Every Wait needs" in error.hint


def test_a_circle_of_waits_is_named_before_what_stands_behind_it():
    circle = {
        rank: (queue("stream0", launch((hear(), tell(1 - rank)))), queue("nic0", hear(1)))
        for rank in range(2)
    }
    error = refused(DeadlockError, made(2, circle), NETWORK)
    assert str(error).startswith("8 commands can never start or end: ")
    assert "stream0@0 lane 0 #1 Wait" in str(error)
    assert "nic0@0 #0 Wait" in str(error)


def test_four_of_the_commands_that_are_stuck_are_named_waits_before_the_rest():
    """Five threads wait and one has nothing handed over; the rest of a thread is not named."""
    waits = [queue(f"nic{n}", hear(1), tell(0)) for n in range(5)]
    fed = queue("copy0", tell(0), tell(0)), queue("host", Submit(0, "copy0", 1))
    error = refused(DeadlockError, made(1, {0: (*fed, *waits)}), machine(1))
    named = "; ".join(f"nic{n}@0 #0 Wait" for n in range(4))
    assert str(error) == f"11 commands can never start or end: {named}."


def test_units_that_a_waiting_launch_holds_can_be_the_reason():
    holds = queue("stream0", launch((hear(),), units=100))
    needed = queue("stream1", launch((tell(0),), units=1))
    error = refused(DeadlockError, made(1, {0: (holds, needed)}), machine(1))
    assert "stream1@0 #0 Launch" in str(error)


def test_commands_that_nobody_submits_are_named():
    engine, host = queue("nic0", tell(0), tell(0)), queue("host", Submit(0, "nic0", 1))
    error = refused(DeadlockError, made(1, {0: (engine, host)}), bare(Level("switch", 1, 1e9)))
    assert str(error) == "1 commands can never start or end: nic0@0 #1 Signal."


def test_a_submission_to_a_queue_without_commands():
    schedule = made(2, {0: (queue("host", Submit(1, "copy4", 1)),)})
    error = refused(ScheduleError, schedule, machine())
    assert str(error) == "host@0 #0 Submit feeds copy4@1, which has no commands."


def test_what_is_too_large_to_be_written_out():
    schedule = collective("all_reduce", "ring", num_ranks=8192, nbytes=8193)
    error = refused(TooLargeError, schedule, platform("switch(8192)@1GiB/s"))
    assert "schedule ring all_reduce: 8,192 ranks expand to 469," in str(error)
    assert "most 30,000,000" in str(error)
    assert "the ranks divide" in error.hint


@pytest.mark.parametrize("units", [0, -1, 101])
def test_a_launch_that_asks_for_units_that_are_not_there(units):
    schedule = made(1, {0: (queue("stream0", launch(units=units)),)})
    error = refused(ScheduleError, schedule, machine(1))
    assert str(error) == f"stream0@0 #0 Launch asks for {units} units; paper has 100 for it."
    assert error.hint == "Ask for 1 to 100."


def test_a_launch_that_asks_for_more_than_its_mask():
    schedule = made(1, {0: (queue("stream0", launch(units=30), units=(10, 30)),)})
    error = refused(ScheduleError, schedule, machine(1))
    assert "asks for 30 units; paper has 20 for it" in str(error)


@pytest.mark.parametrize("mask", [(0, 101), (-1, 5), (7, 7), (9, 3)])
@pytest.mark.parametrize("command", [launch(), matmul(1.0)])
def test_a_mask_outside_the_device(mask, command):
    schedule = made(1, {0: (queue("stream0", command, units=mask),)})
    error = refused(ScheduleError, schedule, machine(1))
    assert f"stream0 is confined to units {mask[0]} up to {mask[1]}; paper has 100" in str(error)


def test_a_device_without_engines():
    schedule = made(2, {0: (queue("copy0", move(0, 1, 8)),)})
    error = refused(PlatformError, schedule, machine(device=replace(DEVICE, dma=None)))
    assert str(error) == "paper has no DMA engines"
    assert "compute units" in error.hint


def test_a_bare_network_has_no_engines():
    error = refused(PlatformError, made(2, {0: (queue("copy0", move(0, 1, 8)),)}), NETWORK)
    assert str(error) == "bare is a network without devices"
    assert "mi300x-8" in error.hint


def test_a_bare_network_computes_nothing():
    error = refused(PlatformError, made(2, {0: (queue("stream0", matmul(1.0)),)}), NETWORK)
    assert str(error) == "bare is a network without devices"


def test_a_kernel_of_a_dtype_that_the_device_does_not_know():
    kernel = Kernel("k", Cost(dtype="fp31", flops=1.0))
    error = refused(UnknownNameError, made(1, {0: (queue("stream0", kernel),)}), machine(1))
    assert str(error) == "paper has no flop rate for dtype 'fp31'"
    assert error.hint == "Did you mean 'fp32'?"


def columns_of_a_launch():
    """Priced columns with one of everything that is an index, and how many flags they use."""
    stream = queue("stream0", launch((move(0, 1, 8), tell(0)), (hear(),), units=1))
    ranks = {0: (stream, queue("nic0", tell(0)), queue("host", Submit(0, "nic0", 1)))}
    network = machine()
    symmetry = platform_symmetry(made(2, ranks), network, collapse=False)
    table = expand(made(2, ranks))
    return price(table, network, symmetry)


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("thread", 99, "thread is out of range"),
        ("thread", -1, "thread is out of range"),
        ("next", 99, "next is out of range"),
        ("flag", 99, "flag is out of range"),
        ("flag", -1, "a flag is missing"),
        ("target", 99, "target is out of range"),
        ("target", -1, "a target is missing"),
        ("lanes", 99, "lanes is out of range"),
        ("lanes_start", 7, "lanes_start"),
        ("thread_first", 99, "thread_first is out of range"),
        ("thread_launch", 99, "thread_launch is out of range"),
        ("thread_pool", 99, "thread_pool is out of range"),
        ("pool_resource", 99, "pool_resource is out of range"),
        ("demand_resource", 99, "demand_resource is out of range"),
        ("before", -1.0, "before is negative"),
        ("size", np.nan, "size is negative"),
        ("latency", -1.0, "latency is negative"),
        ("thread_fetch", -1.0, "thread_fetch is negative"),
    ],
)
def test_the_native_core_refuses_columns_that_could_do_harm(name, wrong, message):
    priced = columns_of_a_launch()
    column = priced.columns[name].copy()
    column[:] = wrong
    times = np.zeros(len(priced.columns["step"]))
    with pytest.raises(ValueError, match=message):
        _core.simulate({**priced.columns, name: column}, priced.num_flags, 0.0, times, times.copy())


def test_the_native_core_refuses_columns_of_unequal_length():
    priced = columns_of_a_launch()
    times = np.zeros(len(priced.columns["step"]))
    with pytest.raises(ValueError, match="start and end need one entry a row"):
        _core.simulate(priced.columns, priced.num_flags, 0.0, times[1:], times)
    short = {**priced.columns, "size": priced.columns["size"][1:]}
    with pytest.raises(ValueError, match="size has the wrong length"):
        _core.simulate(short, priced.num_flags, 0.0, times, times.copy())
