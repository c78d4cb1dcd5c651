"""Steps of MLPerf Training v5.0."""

from __future__ import annotations

import csv
from statistics import median

import pytest

from validation.mlperf_v5 import submitted_rows
from validation.splits import STEPS_BERT


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
