"""Collectives as pure functions that return a Schedule."""

from weft.collectives.catalogue import KINDS, algorithms, collective
from weft.collectives.direct import uneven_all_to_all
from weft.collectives.fetch import WAYS, fetch, fetch_platform

__all__ = [
    "KINDS",
    "WAYS",
    "algorithms",
    "collective",
    "fetch",
    "fetch_platform",
    "uneven_all_to_all",
]
