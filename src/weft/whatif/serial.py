"""Collectives and computation in turn: what follows a collective waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.whatif.recorded import Recording
    from weft.whatif.scene import Scene


def in_turn(scene: Scene) -> Recording:
    """Make every first launch of another stream behind a collective wait for it, and it for all."""
    recording, calls = scene.recording, scene.recording.calls
    after = [set(each) for each in recording.order.after]
    last: dict[int, int] = {}
    pending: dict[int, set[int]] = {}  # streams that have not waited for a collective yet
    numbers = {comm.call for comm in scene.comms}
    streams = set(calls.stream[calls.launches].tolist())
    for number in calls.launches.tolist():
        stream = int(calls.stream[number])
        after[number] |= {comm for comm, left in pending.items() if stream in left}
        for left in pending.values():
            left.discard(stream)
        if number in numbers:
            after[number] |= {n for other, n in last.items() if other != stream}
            pending[number] = streams - {stream}
        last[stream] = number
    order = replace(recording.order, after=tuple(tuple(sorted(each)) for each in after))
    return replace(recording, order=order)
