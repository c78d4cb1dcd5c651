"""Many questions at once: cells of a grid, worked on side by side, kept as they are answered."""

from weft.sweep.cells import Cell, Sweep, cells_of
from weft.sweep.dask_cluster import on_dask
from weft.sweep.journal import Answer, Journal
from weft.sweep.local import on_this_machine

__all__ = [
    "Answer",
    "Cell",
    "Journal",
    "Sweep",
    "cells_of",
    "on_dask",
    "on_this_machine",
]
