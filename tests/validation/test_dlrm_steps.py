"""Steps of DLRM that others measured."""

from __future__ import annotations

import pytest

from validation.dlrm_steps import example_rows, mlperf_rows
from validation.splits import STEPS_DLRM, STEPS_DLRM_NVIDIA


@pytest.mark.data
@pytest.mark.slow
def test_steps_of_dlrm_are_within_the_limits(data):
    for rows, split in (
        (list(mlperf_rows(data)), STEPS_DLRM),
        (list(example_rows(data)), STEPS_DLRM_NVIDIA),
    ):
        assert {row.part for row in rows} == {*split.fitted, *split.held_out}
        unseen = sorted(abs(row.error) for row in rows if row.part in split.held_out)
        assert unseen[len(unseen) // 2] < 0.12
        assert unseen[-1] < 0.25
