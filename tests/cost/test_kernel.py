"""A kernel as a flow: the roofline."""

import pytest

from weft.cost import kernel_flow
from weft.errors import UnknownNameError
from weft.hardware import platform
from weft.schedule import Cost

DEVICE = platform("mi300x-8").require_device()


def seconds(cost):
    """On an idle device: memory or units, whichever takes longer."""
    flow = kernel_flow(cost, DEVICE)
    by_memory = flow.memory * flow.size / DEVICE.memory_rate
    return max(by_memory, flow.unit_seconds * flow.size / DEVICE.units)


def test_a_kernel_with_much_work_runs_at_the_flop_rate():
    cost = Cost(dtype="bf16", flops=7e12, nbytes=1000)
    assert seconds(cost) == pytest.approx(7e12 / DEVICE.flops["bf16"].achieved)


def test_a_kernel_with_much_traffic_runs_at_the_memory_rate():
    cost = Cost(dtype="bf16", flops=1e6, nbytes=10**9)
    assert seconds(cost) == pytest.approx(10**9 / DEVICE.memory_rate)


def test_a_kernel_without_traffic_flows_as_one_piece_of_work():
    flow = kernel_flow(Cost(dtype="bf16", flops=7e12), DEVICE)
    assert (flow.size, flow.memory) == (1.0, 0.0)
    assert flow.unit_seconds == pytest.approx(7e12 / DEVICE.flops["bf16"].achieved * DEVICE.units)


def test_a_kernel_that_only_moves_needs_no_dtype():
    assert kernel_flow(Cost(nbytes=10), DEVICE) == (10.0, 1.0, 0.0)


def test_a_dtype_that_the_device_does_not_know_is_answered_with_those_it_does():
    with pytest.raises(
        UnknownNameError, match="mi300x has no flop rate for dtype 'fp61'"
    ) as caught:
        kernel_flow(Cost(dtype="fp61", flops=1.0), DEVICE)
    assert "fp16" in caught.value.hint
