"""A recorded step predicted on another machine."""

import pytest

from tests.whatif.player import Do, recorded
from tests.whatif.test_changes import STEP
from weft.hardware import platform
from weft.whatif import predict_trace, what_if


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("step"), [STEP] * 4)[0]


@pytest.mark.parametrize("name", ["a100-8", "h100-8"])
def test_a_trace_is_predicted_as_whatif_moves_it(trace, name):
    found = predict_trace(trace, platform(name))
    moved = what_if(trace, on=platform(name)).outcomes[0]
    assert found.seconds == pytest.approx(moved.step)
    assert found.low <= found.seconds <= found.high
    assert sum(found.breakdown.values()) == pytest.approx(found.seconds)
    assert found.platform.name == name


def test_a_step_that_was_recorded_alone_ends_with_its_device(tmp_path):
    step = [Do(seconds=5000.0), Do(seconds=4000.0)]  # the host does not wait for them
    trace = recorded(tmp_path, [step])[0]
    found = predict_trace(trace, platform("a100-8"))
    assert found.seconds > 8e-3
    assert found.breakdown["compute"] == pytest.approx(found.seconds, rel=0.05)
