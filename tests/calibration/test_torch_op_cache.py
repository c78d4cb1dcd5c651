"""Times of single ops that are kept with the calibration."""

import os

import pytest

torch = pytest.importorskip("torch")

from weft.calibration import torch_op_times  # noqa: E402
from weft.calibration.torch_op_calls import OpCall, TensorSpec  # noqa: E402
from weft.calibration.torch_op_times import OpTime, time_ops  # noqa: E402
from weft.hardware.files import here_path  # noqa: E402

pytestmark = pytest.mark.torch
ADD = OpCall("aten::add.Tensor", (TensorSpec((4, 4), (4, 1), "float32"),) * 2)
MUL = OpCall("aten::mul.Tensor", (TensorSpec((4, 4), (4, 1), "float32"),) * 2)


@pytest.fixture
def timed(monkeypatch, tmp_path):
    """Count what is timed, in a home of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    asked = []

    def time_them(calls):
        asked.append(list(calls))
        return [OpTime(2.0, 1.0) for _ in calls]

    monkeypatch.setattr(torch_op_times, "time_ops", time_them)
    return asked


def test_an_op_is_timed_once(timed):
    assert torch_op_times.stored_times([ADD]) == {ADD: OpTime(2.0, 1.0)}
    assert set(torch_op_times.stored_times([ADD, MUL])) == {ADD, MUL}
    assert timed == [[ADD], [MUL]]


def test_a_new_calibration_makes_old_times_worthless(timed):
    torch_op_times.stored_times([ADD])
    here_path().write_text("", encoding="utf-8")
    later = torch_op_times.ops_path().stat().st_mtime + 10
    os.utime(here_path(), (later, later))
    torch_op_times.stored_times([ADD])
    assert timed == [[ADD], [ADD]]


@pytest.mark.parametrize("text", ["no JSON", '{"torch": "1.0", "times": {}}'])
def test_a_file_that_says_nothing_is_written_again(timed, text):
    torch_op_times.ops_path().parent.mkdir(parents=True)
    torch_op_times.ops_path().write_text(text, encoding="utf-8")
    torch_op_times.stored_times([ADD])
    torch_op_times.stored_times([ADD])
    assert timed == [[ADD]]


@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_ops_are_timed_on_two_ranks():
    (found,) = time_ops([ADD], repeats=2)
    assert found.cold > 0
    assert found.warm > 0
