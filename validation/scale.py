"""From 1 to 131,072 devices: weft's own predictions, for which no figures are published."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from validation.scale_plots import plots
from validation.scale_points import JOBS, point
from validation.target import Target
from weft.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["NAME", "QUESTION", "plots", "targets"]

NAME = "scale"
QUESTION = "How much communication is exposed as a job grows, and which strategies buy it back?"
_LISTED = (8, 4096)  # of all that the plots show

_target = partial(Target, NAME, source="weft's prediction", published=None, unit="%")


def targets() -> Iterator[Target]:
    """Compute the figures of a node and of a large cluster."""
    for job in JOBS:
        for num_ranks in _LISTED:
            found = point(job, num_ranks)
            bought = {name: found.saved(name) for name in found.alone}
            best = max(bought, key=bought.__getitem__, default="")
            yield _target(
                f"{job.name}, {num_ranks} MI300X: exposed",
                weft=found.share,
                note=f"a step takes {format_time(found.step)}"
                + (f"; {best} saves {bought[best]:.1f} %" if best else ""),
            )
