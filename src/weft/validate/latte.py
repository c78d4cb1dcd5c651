"""Collectives by DMA engines, latency-bound: arXiv 2511.06605, 8 MI300X."""

from collections.abc import Iterator

from weft.validate.target import Target

NAME = "latte"
QUESTION = "Do four phases and one host thread explain collectives by DMA engines?"


def targets() -> Iterator[Target]:
    """Compute the figures."""
    yield from ()
