"""Mixed random collectives: no byte is wrong and nothing grows. ``WEFT_SEED`` replays a run."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.soak.driver import lines_of
from tests.soak.growth import Held, grown

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess]


def soak(count: int, asks: int) -> tuple[list[list[Held]], str]:
    """What the ranks held, and a line that says how it went; every byte was right."""
    reports = lines_of("tests.soak.traffic", count, asks)
    calls = sum((Counter(report["calls"]) for report in reports), Counter[str]())
    wrong = [line for report in reports for line in report["wrong"]]
    assert not wrong, wrong[:5]
    assert len(calls) > min(3 * asks, 45)  # most kinds at most places
    samples = [[Held(*sample) for sample in report["samples"]] for report in reports]
    return samples, f"{count} steps, {calls.total()} calls on {len(reports)} ranks, 0 wrong"


@pytest.mark.timeout(120)
def test_a_sample_of_traffic_is_right_to_the_byte():
    soak(1_000, 8)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_long_traffic_is_right_to_the_byte_and_nothing_grows(capsys):
    samples, line = soak(100_000, 40)
    with capsys.disabled():
        print(f"\n{line}")  # noqa: T201 - what a soak found is worth reading
        for rank, each in enumerate(samples):
            print(f"  rank {rank}: {each[len(each) // 4]}, at the end {each[-1]}")  # noqa: T201
    assert not any(grown(each) for each in samples), [grown(each) for each in samples]
