"""The same step on other hardware: kernels by the prices of both devices, links by their curves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from weft.trace.machine_links import MachineLinks
from weft.whatif.change import Change, Variant
from weft.whatif.costs import scales

if TYPE_CHECKING:
    from weft.hardware import Platform
    from weft.whatif.scene import Scene


def elsewhere(scene: Scene, on: Platform) -> Change:
    """Move a step to another machine; its host and its waiting for other ranks stay."""
    here, there = scene.ground.machine.require_device(), on.require_device()
    found = scales(scene.ground.trace, scene.recording.calls, here, there)
    variants = [_variant(scene, on, np.array([each[end] for each in found])) for end in range(3)]
    why = f"kernels by the prices of {here.name} and {there.name}, collectives by their links; "
    why += "the same host and the same waiting"
    return Change(f"on {on.name}", why, variants[0], tuple(variants[1:]))


def _variant(scene: Scene, on: Platform, scale: np.ndarray) -> Variant:
    recording = scene.recording
    seconds = recording.seconds * scale
    links = MachineLinks(on)
    for comm in scene.comms:
        what = comm.what
        now = scene.ground.links.seconds(what.kind, what.nbytes, what.num_ranks, what.dtype)
        then = links.seconds(what.kind, what.nbytes, what.num_ranks, what.dtype)
        moved = comm.moved * then / now if now and then else comm.moved
        seconds[comm.call] = comm.waited + moved
    return Variant(replace(recording, seconds=seconds))
