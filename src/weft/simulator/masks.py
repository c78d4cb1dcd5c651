"""The units that a queue may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.errors import ScheduleError

if TYPE_CHECKING:
    from weft.hardware import Device
    from weft.schedule import Queue


def masked_units(queue: Queue, device: Device) -> int:
    """How many units of a device the commands of a queue may use."""
    first, last = queue.units or (0, device.units)
    if not 0 <= first < last <= device.units:
        raise ScheduleError(
            f"{queue.name} is confined to units {first} up to {last}; {device.name} has "
            f"{device.units}.",
            f"A mask goes from a first unit up to a later one, at most {device.units}.",
        )
    return last - first
