"""Opaque kernels of two streams: one that does not fit at once is dispatched as a whole first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulator.paper import DEVICE, machine, made, queue
from weft.schedule import SELF, Cost, Kernel, Submit
from weft.simulator import simulate

DEV = replace(DEVICE, launch=0.0, host_launch=1e-9)
LONG, SHORT = 1e-3, 1e-5


def kernel(seconds, waves=1):
    return Kernel("k", Cost(seconds=seconds, tiles=round(waves * DEV.units)))


def launched(first, second, priority=0):
    submits = (Submit(SELF, "stream0", 1), Submit(SELF, "stream1", 1))
    streams = queue("stream0", first), queue("stream1", second, priority=priority)
    return made(2, {0: (queue("host", *submits), *streams)})


def starts(first, second, priority=0):
    """Return when two kernels started that were launched one after the other."""
    timeline = simulate(launched(first, second, priority), machine(device=DEV))
    found = {span.queue: span.start for span in timeline.spans() if span.rank == 0}
    return found["stream0"], found["stream1"]


@pytest.mark.parametrize("waves", [2, 4, 10])
def test_a_kernel_waits_for_the_last_wave_of_one_that_fills_the_device(waves):
    assert starts(kernel(LONG, waves), kernel(SHORT))[1] == pytest.approx(
        LONG * (1 - 1 / waves), rel=1e-3
    )


def test_kernels_that_fit_together_start_together():
    assert starts(kernel(LONG), kernel(SHORT))[1] < SHORT


def test_a_stream_of_higher_priority_does_not_wait():
    assert starts(kernel(LONG, 4), kernel(SHORT), priority=1)[1] < SHORT


def test_who_came_first_goes_first():
    ends = [kernel(LONG, 4), kernel(LONG, 4), kernel(SHORT)]
    submits = [Submit(SELF, f"stream{i}", 1) for i in range(3)]
    streams = [queue(f"stream{i}", each) for i, each in enumerate(ends)]
    timeline = simulate(made(2, {0: (queue("host", *submits), *streams)}), machine(device=DEV))
    found = [span.start for span in timeline.spans() if span.queue.startswith("stream")]
    assert found == pytest.approx([0, LONG * 0.75, LONG * 1.5], rel=1e-3, abs=1e-6)
