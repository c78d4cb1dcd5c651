"""Steps of MLPerf Training v5.0."""

from __future__ import annotations

import csv
from statistics import median

import pytest

from validation.mlperf_v5 import pooled_targets, scaling_targets, submitted_rows
from validation.splits import STEPS_BERT
from validation.step_rows import StepRow


def row(part, measured, predicted):
    return StepRow(part, "someone", measured, predicted, predicted, predicted)


def test_pooled_rows_have_a_median_error_and_a_share_near_the_measured_step():
    rows = [row("a", 1.0, 1.0 + error) for error in (0.02, -0.04, 0.14, -0.5)]
    median, near = pooled_targets(rows, fitted=False)
    assert median.weft == pytest.approx(9.0)
    assert not median.met
    assert near.weft == pytest.approx(75.0)
    assert not near.met


def test_steps_on_more_gpus_are_compared_with_that_on_the_fewest():
    rows = [row("H100 1024", 1.1, 1.0), row("H100 512", 2.2, 2.0), row("H100 2048", 0.6, 0.5)]
    near, far = scaling_targets([*rows, row("GB200 256", 1.0, 9.0)])
    assert near.published == pytest.approx(50.0)
    assert near.met
    assert far.error == pytest.approx(100 * (0.25 / (0.6 / 2.2) - 1))
    assert not far.met


@pytest.mark.data
def test_steps_of_bert_are_within_the_limits(data):
    rows = submitted_rows(data, "bert")
    unseen = [abs(row.error) for row in rows if row.part not in STEPS_BERT.fitted]
    known = [abs(row.error) for row in rows if row.part in STEPS_BERT.fitted]
    assert median(known) < 0.06
    assert median(unseen) < 0.08


@pytest.mark.data
def test_steps_of_bert_are_timed_between_evaluations(data):
    with (data / STEPS_BERT.folder).open() as file:
        methods = {row["method"] for row in csv.DictReader(file) if row["benchmark"] == "bert"}
    assert methods == {"between_evals"}
