"""A kernel as a flow: so many bytes, limited by memory and by the units it runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from weft.cost.peak_rates import flops_of

if TYPE_CHECKING:
    from weft.hardware import Device
    from weft.schedule import Cost


class KernelFlow(NamedTuple):
    """``size`` that flows, each unit of it moving ``memory`` bytes and taking unit-seconds."""

    size: float
    memory: float
    unit_seconds: float


def kernel_flow(cost: Cost, device: Device) -> KernelFlow:
    """Return the roofline as a flow: at full units it runs at its flop rate, or at memory's.

    Its memory traffic is what flows; a kernel without traffic flows as one piece of work.
    Nothing flows in an opaque kernel, whose seconds are known.
    """
    if cost.seconds:
        return KernelFlow(0.0, 0.0, 0.0)
    size = float(cost.nbytes) or 1.0
    seconds = cost.flops / flops_of(device, cost.dtype).achieved if cost.flops else 0.0
    return KernelFlow(size, 1.0 if cost.nbytes else 0.0, seconds * device.units / size)
