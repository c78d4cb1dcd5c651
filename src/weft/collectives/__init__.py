"""Collectives as pure functions that return a Schedule."""

from weft.collectives.catalogue import KINDS, algorithms, collective
from weft.collectives.direct import uneven_all_to_all

__all__ = ["KINDS", "algorithms", "collective", "uneven_all_to_all"]
