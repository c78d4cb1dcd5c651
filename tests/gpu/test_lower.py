"""The packets of a schedule's copy queues give the same bytes as the schedule."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collective_values import expected, inputs
from tests.gpu.node import Node
from weft.collectives import algorithms, collective, fetch
from weft.errors import ScheduleError, UsageError
from weft.gpu.sdma import Lowering, lower
from weft.gpu.sdma import packets as sdma
from weft.schedule import (
    Broadcast,
    Buffer,
    Copy,
    Flag,
    Program,
    Queue,
    Reduce,
    Schedule,
    Signal,
    Slice,
    Submit,
    Swap,
    Wait,
)

CASES = [
    (kind, name)
    for kind in ("all_gather", "all_to_all")
    for name in algorithms(kind)
    if name.startswith("dma")
]


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@given(num_ranks=st.integers(2, 8), share=st.integers(0, 70), seed=st.integers(0, 99))
@settings(max_examples=6, deadline=None)
def test_engines_do_what_the_schedule_says(kind, algorithm, num_ranks, share, seed):
    schedule = collective(kind, algorithm, num_ranks=num_ranks, nbytes=share * num_ranks)
    node = Node(schedule, seed, ring_words=32, packet_bytes=7 + seed % 40, swap_alignment=1)
    for execution in range(2):  # thresholds go on from where the last one ended
        data = inputs(kind, schedule, seed + execution)
        for key, values in data.items():
            node.memory[key][:] = values
        node.run()
        for key, want in expected(kind, schedule, data).items():
            assert np.array_equal(node.memory[key], want), key


@given(blocks=st.integers(1, 200), engines=st.integers(1, 2), seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_blocks_are_fetched_by_packets(blocks, engines, seed):
    schedule = fetch(blocks, 8, "b2b", engines=min(engines, blocks))
    node = Node(schedule, seed)
    node.memory[1, "pool"][:] = np.arange(8 * blocks) % 251
    node.run()
    assert np.array_equal(node.memory[0, "cache"], node.memory[1, "pool"])


def one_queue(*commands, submits=(), nbytes=100):
    host = (Queue("host", submits),) if submits else ()
    programs = (Program((0,), (Queue("copy0", commands), *host)),)
    return Schedule("one", 2, programs, (Buffer("x", nbytes), Buffer("y", nbytes)), 4)


def x(rank, nbytes=100):
    return Slice(rank, "x", 0, nbytes)


PLACES = {(rank, name): 1024 * (2 * rank + (name == "y")) for rank in (0, 1) for name in "xy"}


def lowered(schedule, **options):
    lowering = Lowering(PLACES, {0: 8000, 1: 9000}, **options)
    return [batch.packets for batch in lower(schedule, lowering)[0, "copy0"]]


def test_a_long_copy_is_several_packets():
    copy = Copy(x(0), Slice(1, "y", 0, 100))
    assert lowered(one_queue(copy), packet_bytes=40) == [
        (sdma.CopyPacket(0, 3072, 40), sdma.CopyPacket(40, 3112, 40), sdma.CopyPacket(80, 3152, 20))
    ]


def test_a_broadcast_to_three_is_a_pair_and_a_copy():
    cast = Broadcast(x(0, 8), (Slice(0, "y", 0, 8), Slice(1, "x", 0, 8), Slice(1, "y", 0, 8)))
    assert lowered(one_queue(cast)) == [
        (sdma.BroadcastPacket(0, (1024, 2048), 8), sdma.CopyPacket(0, 3072, 8))
    ]


def test_destinations_that_no_broadcast_packet_pairs_are_two_copies():
    cast = Broadcast(x(0, 8), (Slice(0, "y", 0, 8), Slice(1, "x", 16, 8)))
    assert lowered(one_queue(cast)) == [
        (sdma.CopyPacket(0, 1024, 8), sdma.CopyPacket(0, 2064, 8)),
    ]


def test_packets_of_a_swap_begin_at_multiples_of_64():
    swap = Swap(Slice(0, "x", 0, 1000), Slice(1, "y", 0, 1000))
    (packets,) = lowered(one_queue(swap, nbytes=1000), packet_bytes=400)
    assert packets == (
        sdma.SwapPacket(0, 3072, 384),
        sdma.SwapPacket(384, 3456, 384),
        sdma.SwapPacket(768, 3840, 232),
    )


@pytest.mark.parametrize(
    ("offset", "options", "said"),
    [
        (8, {}, r"0xc08 \(expected a multiple of 64"),
        (0, {"packet_bytes": 63}, "packet_bytes is 63"),
    ],
)
def test_swaps_that_gfx94x_refuses_are_refused(offset, options, said):
    swap = Swap(x(0, 64), Slice(1, "y", offset, 64))
    with pytest.raises((ScheduleError, UsageError), match=said):
        lowered(one_queue(swap), **options)
    assert lowered(one_queue(swap), **options, swap_alignment=1)


def test_flags_are_atomics_and_polls():
    commands = (Wait(Flag(0, 2), 3), Signal(Flag(1, 1)))
    assert lowered(one_queue(*commands), base={(0, 2): 7}) == [
        (sdma.PollPacket(8016, 10), sdma.AtomicAddPacket(9008, 1))
    ]


def test_an_empty_copy_is_no_packet():
    assert lowered(one_queue(Copy(x(0, 0), x(1, 0)))) == [()]


def test_every_submission_is_a_batch_and_a_held_one_begins_with_a_poll():
    copy = Copy(x(0, 8), x(1, 8))
    submits = (Submit(0, "copy0", 2, Flag(0, 3)), Submit(0, "copy0", 1))
    first, second = lowered(one_queue(copy, copy, copy, submits=submits))
    assert first == (
        sdma.PollPacket(8024, 1),
        sdma.CopyPacket(0, 2048, 8),
        sdma.CopyPacket(0, 2048, 8),
    )
    assert second == (sdma.CopyPacket(0, 2048, 8),)


def test_a_completion_that_the_host_waits_for_may_interrupt_it():
    schedule = one_queue(
        Signal(Flag(0, 0)), Signal(Flag(0, 1)), submits=(Submit(0, "copy0", 2), Wait(Flag(0, 0)))
    )
    (packets,) = lowered(schedule, interrupts=True)
    assert packets == (
        sdma.AtomicAddPacket(8000, 1),
        sdma.TrapPacket(),
        sdma.AtomicAddPacket(8008, 1),
    )


def test_prelaunched_packets_wait_for_one_store():
    schedule = collective("all_gather", "dma-b2b+prelaunch", num_ranks=4, nbytes=64)
    places = {(rank, "data"): 4096 * rank for rank in range(4)}
    found = lower(schedule, Lowering(places, dict.fromkeys(range(4), 1 << 20)))
    assert len(found) == 4
    for (batch,) in found.values():
        kinds = [type(packet) for packet in batch.packets]
        assert kinds == [
            sdma.PollPacket,
            sdma.CopyPacket,
            sdma.CopyPacket,
            sdma.CopyPacket,
            sdma.AtomicAddPacket,
        ]


def test_engines_do_not_add():
    add = Reduce((x(0), x(1)), x(0))
    with pytest.raises(ScheduleError, match="copy0@0"):
        lowered(one_queue(add))


def test_more_queues_than_engines_are_refused():
    schedule = collective("all_gather", "dma", num_ranks=4, nbytes=64)
    places = {(rank, "data"): 0 for rank in range(4)}
    with pytest.raises(UsageError, match="copy2@0") as caught:
        lower(schedule, Lowering(places, dict.fromkeys(range(4), 0), num_engines=2))
    assert "dma-b2b" in caught.value.hint


def test_commands_that_nobody_hands_over_are_refused():
    copy = Copy(x(0, 8), x(1, 8))
    with pytest.raises(ScheduleError, match=r"copy0@0 \#1"):
        lowered(one_queue(copy, copy, submits=(Submit(0, "copy0", 1),)))


@pytest.mark.parametrize("size", [0, (1 << 30) + 1])
def test_no_engine_takes_packets_of_any_size(size):
    with pytest.raises(UsageError, match=f"packet_bytes is {size}"):
        Lowering({}, {}, packet_bytes=size)
