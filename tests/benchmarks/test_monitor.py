"""The cost of the monitor is measured in one job, with and without it in turn."""

import pytest

from benchmarks.monitor import monitored


@pytest.mark.torch
@pytest.mark.multiprocess
@pytest.mark.timeout(120)
def test_steps_are_measured_with_and_without_the_monitor():
    row = monitored(0.001, rounds=1)
    assert len(row.times) == 1
    assert row.more["windows"] >= 1
    assert row.more["without"] > 0
    assert row.more["overhead"] > -0.9
