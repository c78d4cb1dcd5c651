"""Collectives as pure functions that return a Schedule."""

from weft.collectives.catalogue import (
    ENGINE_FEATURES,
    KINDS,
    algorithms,
    collective,
    engine_algorithms,
)
from weft.collectives.fetch import FETCH_METHODS, fetch, fetch_platform

__all__ = [
    "ENGINE_FEATURES",
    "FETCH_METHODS",
    "KINDS",
    "algorithms",
    "collective",
    "engine_algorithms",
    "fetch",
    "fetch_platform",
]
