"""What slows a pair down, and the platform on which one of these does not happen.

Switching a mechanism off changes the numbers it is computed from and nothing else, so what
remains is what the others explain.
"""

from dataclasses import dataclass, replace
from typing import Any

from weft.errors import UnknownNameError, nearest
from weft.hardware import Kernels, Platform

_FINE = 64  # pieces of a tile that are as good as a fluid


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One of the reasons, in a line."""

    name: str
    why: str


MECHANISMS = (
    Mechanism("waves", "tiles do not divide evenly among the units that are left"),
    Mechanism("admission", "workgroups that come second wait for slots that come free"),
    Mechanism("cache", "lines of too many workgroups in flight drive each other out of the L2"),
    Mechanism("requests", "memory serves requests in proportion to those in flight"),
    Mechanism("load", "under load a request takes longer, and a copy has no more of them"),
    Mechanism("clock", "the watts of traffic lower the clock of a device at its power limit"),
    Mechanism("staging", "what a collective kernel brings passes a buffer of the receiver"),
    Mechanism("launch", "the host launches one kernel after another, and feeds engines"),
)
NAMES = tuple(each.name for each in MECHANISMS)


def without(platform: Platform, name: str) -> Platform:
    """Return the platform with one mechanism off."""
    if name not in NAMES:
        raise UnknownNameError(f"unknown mechanism {name!r}", nearest(name, NAMES))
    device = platform.require_device()
    if name == "launch":
        return replace(platform, device=_at_once(device))
    kernels = replace(device.kernels, **_off(name, device.kernels))
    return replace(platform, device=replace(device, kernels=kernels))


def _off(name: str, kernels: Kernels) -> dict[str, Any]:
    """Return the changed numbers of the kernels."""
    return {
        # A share of the tiles that end is the same share of as many more pieces.
        "waves": {"pieces": _FINE, "dispatch_share": kernels.dispatch_share / _FINE},
        "admission": {"dispatch_share": 1.0},
        "cache": {"live_steps": 0.0},
        "requests": {"overcommit": 0.0},
        "load": {"load_latency": 0.0},
        "clock": {"clock_coupling": 0.0},
        "staging": {"staging": 0.0},
    }[name]


def _at_once(device: Any) -> Any:
    """Return a device that is launched and fed in next to no time: the order stays."""
    dma = device.dma
    if dma is not None:
        dma = replace(dma, control=0.0, doorbell=0.0, fetch=0.0, observe=0.0)
    return replace(device, launch=0.0, host_launch=1e-9, dma=dma)
