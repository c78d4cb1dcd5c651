import csv
import io
import json

import numpy as np
import pytest

from weft.report.results import plain, results_csv, results_json


def test_one_object_with_the_agreed_keys():
    whole = json.loads(results_json("collective", "mi300x-8", [{"seconds": 1.5}]))
    assert list(whole) == ["weft", "verb", "platform", "results"]
    assert whole["verb"] == "collective"
    assert whole["platform"] == "mi300x-8"
    assert whole["results"] == [{"seconds": 1.5}]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float64("nan")])
def test_a_number_that_is_none_becomes_null(value):
    assert json.loads(results_json("x", None, [{"v": value}]))["results"] == [{"v": None}]


def test_numpy_becomes_plain():
    value = {"a": np.int64(3), "b": np.array([1.0, np.nan]), 4: (np.float32(0.5), True, None)}
    assert plain(value) == {"a": 3, "b": [1.0, None], "4": [0.5, True, None]}


def test_csv_has_the_keys_of_all_rows():
    text = results_csv([{"a": 1, "b": float("nan")}, {"a": 2, "c": "x,y"}])
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows == [{"a": "1", "b": "", "c": ""}, {"a": "2", "b": "", "c": "x,y"}]
