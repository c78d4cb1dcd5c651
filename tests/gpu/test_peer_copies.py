"""Copies of schedules on streams: at once on CPU tensors, and on streams that run late."""

from __future__ import annotations

import random
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.collective_values import expected, inputs
from weft.collectives import algorithms, collective, fetch
from weft.errors import DeadlockError, ScheduleError, UsageError
from weft.gpu.device_streams import ImmediateStreams, streams_for
from weft.gpu.peer_copies import PeerCopies
from weft.schedule import Buffer, Flag, Program, Queue, Reduce, Schedule, Slice, Wait

pytestmark = pytest.mark.torch

CASES = [
    (kind, name)
    for kind in ("all_gather", "all_to_all", "broadcast")
    for name in algorithms(kind)
    if name.startswith("dma") or name in ("direct", "ring", "chain")
]


@dataclass
class LateStream:
    """Work in order; an item is work, or an event to wait for, or one to raise."""

    items: list[tuple[str, Any]] = field(default_factory=list)


class Late:
    """Streams that do nothing until the end, then run in turns of chance, held by events only."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.streams = []
        self.raised = set()
        self.num_events = 0
        self.producer = LateStream()  # the current stream, with kernels that write inputs
        self.streams.append(self.producer)

    def produced(self, _devices):
        return [self.record(self.producer)]

    def stream(self, _device):
        self.streams.append(LateStream())
        return self.streams[-1]

    def issue(self, stream, _devices, work):
        stream.items.append(("work", work))

    def record(self, stream):
        self.num_events += 1
        stream.items.append(("raise", self.num_events))
        return self.num_events

    def wait(self, stream, event):
        stream.items.append(("wait", event))

    def finish(self, _stream):
        while any(each.items for each in self.streams):
            ready = [
                each
                for each in self.streams
                if each.items and (each.items[0][0] != "wait" or each.items[0][1] in self.raised)
            ]
            assert ready, "the events wait for each other"
            kind, value = self.random.choice(ready).items.pop(0)
            if kind == "work":
                value()
            elif kind == "raise":
                self.raised.add(value)


def tensors_of(schedule):
    return {
        (rank, buffer.name): torch.zeros(buffer.size_on(rank), dtype=torch.uint8)
        for buffer in schedule.buffers
        for rank in range(schedule.num_ranks)
    }


def check(kind, schedule, copies, seed):
    for execution in range(2):
        data = inputs(kind, schedule, seed + execution)
        for key, values in data.items():
            copies.tensors[key].copy_(torch.from_numpy(np.ascontiguousarray(values)))
        copies.run()
        for key, want in expected(kind, schedule, data).items():
            assert np.array_equal(copies.tensors[key].numpy(), want), key


@pytest.mark.parametrize(("kind", "algorithm"), CASES)
@given(num_ranks=st.integers(2, 5), share=st.integers(0, 40), seed=st.integers(0, 99))
@settings(max_examples=8, deadline=None)
def test_every_rank_ends_with_what_it_should(kind, algorithm, num_ranks, share, seed):
    schedule = collective(kind, algorithm, num_ranks=num_ranks, nbytes=share * num_ranks)
    for streams in (ImmediateStreams(), Late(seed)):
        check(kind, schedule, PeerCopies(schedule, tensors_of(schedule), streams=streams), seed)


def test_copies_begin_behind_the_kernels_that_write_their_inputs():
    schedule = collective("all_gather", "dma", num_ranks=3, nbytes=48)
    for seed in range(20):
        streams = Late(seed)
        copies = PeerCopies(schedule, tensors_of(schedule), streams=streams)
        data = inputs("all_gather", schedule, seed)
        for key, values in data.items():
            late = torch.from_numpy(np.ascontiguousarray(values))
            streams.issue(streams.producer, (), partial(copies.tensors[key].copy_, late))
        copies.run()
        for key, want in expected("all_gather", schedule, data).items():
            assert np.array_equal(copies.tensors[key].numpy(), want), (seed, key)


@pytest.mark.parametrize("way", ["per-copy", "b2b", "kernel"])
def test_blocks_are_fetched(way):
    schedule = fetch(70, 3, way)
    tensors = tensors_of(schedule)
    tensors[1, "pool"].copy_(torch.arange(210) % 251)
    PeerCopies(schedule, tensors, streams=Late(7)).run()
    assert torch.equal(tensors[0, "cache"], tensors[1, "pool"])


def test_copies_that_follow_each_other_are_given_to_torch_together():
    schedule = collective("all_gather", "dma-b2b", num_ranks=4, nbytes=64)
    issued = []

    class Counting(ImmediateStreams):
        def issue(self, stream, devices, work):
            issued.append(stream)
            super().issue(stream, devices, work)

    PeerCopies(schedule, tensors_of(schedule), streams=Counting()).run()
    assert len(issued) == 4  # one a rank, three copies each


def test_cpu_tensors_need_no_streams():
    assert isinstance(streams_for([torch.device("cpu")]), ImmediateStreams)


class Recorded:
    """Stands in for torch.cuda.Stream and says what is asked of it."""

    log: list[str]

    def __init__(self, device):
        self.device = device

    def wait_stream(self, other):
        self.log.append(f"{self.device} waits for {other.device}")

    def wait_event(self, event):
        self.log.append(f"{self.device} waits for {event}")

    def synchronize(self):
        self.log.append(f"{self.device} done")


def test_work_on_another_device_begins_behind_its_stream_and_is_waited_for(monkeypatch):
    log: list[str] = []
    here, there = torch.device("cuda:0"), torch.device("cuda:1")

    @contextmanager
    def current(stream):
        log.append(f"{stream.device} is current")
        yield

    monkeypatch.setattr(Recorded, "log", log, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", Recorded)
    monkeypatch.setattr(torch.cuda, "stream", current)
    streams = streams_for([here])
    stream = streams.stream(here)
    streams.wait(stream, "event")
    streams.issue(stream, (here, there), lambda: log.append("work"))
    streams.finish(stream)
    assert log == [
        "cuda:0 waits for event",
        "cuda:1 waits for cuda:0",
        "cuda:1 is current",
        "cuda:0 is current",
        "work",
        "cuda:0 waits for cuda:1",
        "cuda:0 done",
    ]


def schedule_of(*commands):
    programs = (Program((0,), (Queue("stream0", commands),)),)
    return Schedule("by hand", 1, programs, (Buffer("x", 8),), 1)


def test_what_is_no_copy_is_refused():
    where = Slice(0, "x", 0, 8)
    with pytest.raises(ScheduleError, match="stream0@0 #0: a Reduce is no copy"):
        PeerCopies(schedule_of(Reduce((where,), where)), {}).run()


def test_what_can_never_go_on_is_named():
    with pytest.raises(DeadlockError, match="stream0@0 #0"):
        PeerCopies(schedule_of(Wait(Flag(0, 0))), {}).run()


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (None, "needs data of rank 1, 64 bytes"),
        (torch.zeros(16), "of torch.float32, not 64 bytes in a row"),
        (torch.zeros(65, dtype=torch.uint8), "not 64 bytes in a row"),
        (torch.zeros(128, dtype=torch.uint8)[::2], "not 64 bytes in a row"),
    ],
)
def test_tensors_must_be_the_buffers(tensor, said):
    schedule = collective("all_gather", "dma", num_ranks=2, nbytes=64)
    given_ = {(0, "data"): torch.zeros(64, dtype=torch.uint8)}
    if tensor is not None:
        given_[1, "data"] = tensor
    with pytest.raises(UsageError, match=said):
        PeerCopies(schedule, given_)
