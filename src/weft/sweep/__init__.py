"""Parameter sweeps: the cells of a grid are computed in parallel and stored as they finish."""

from weft.sweep.cells import Sweep, SweepCell, cells_of
from weft.sweep.dask_cluster import run_on_dask
from weft.sweep.journal import CellAnswer, Journal
from weft.sweep.local import run_local

__all__ = [
    "CellAnswer",
    "Journal",
    "Sweep",
    "SweepCell",
    "cells_of",
    "run_local",
    "run_on_dask",
]
