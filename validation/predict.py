"""Kernels against measured tables: by formula, with a correction, and on devices not shown.

Where the tables are, corrections are fitted again without what is held back and the errors are
computed; elsewhere those that were recorded with the catalogue are shown. Coefficients are as
recorded.
"""

from collections.abc import Iterator

from validation.memory_rows import memory_targets
from validation.nccl_tables import data_folder
from validation.predict_kernels import (
    elsewhere,
    fitted_kernels,
    left_out_devices,
    training_attention,
)
from validation.predict_steps import step_targets
from validation.target import Target
from validation.unseen_plots import plots

__all__ = ["NAME", "QUESTION", "plots", "targets"]

NAME = "predict"
QUESTION = "How long do kernels take: shapes, tables and whole devices that no fit was shown?"


def targets() -> Iterator[Target]:
    """Compute the errors, family by family."""
    folder = data_folder()
    yield from fitted_kernels(folder)
    yield from left_out_devices()
    yield from training_attention()
    if folder is not None:
        yield from elsewhere(folder)
        yield from step_targets(folder)
        yield from memory_targets(folder)
