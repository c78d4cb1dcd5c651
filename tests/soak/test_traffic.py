"""Mixed random collectives: no byte is wrong and nothing grows. ``WEFT_SEED`` replays a run."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest

from tests.runtime.left import nothing_left
from tests.soak.growth import grown
from tests.soak.traffic import run_traffic
from tests.torch.ranks import on_ranks

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess]
RANKS = 4


def soak(count: int, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("WEFT_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"WEFT_SEED={seed}")
    with nothing_left():
        reports = on_ranks(run_traffic, RANKS, seed, count)
    calls = sum((report.calls for report in reports), Counter())
    wrong = [line for report in reports for line in report.wrong]
    with capsys.disabled():
        print(f"\n{count} steps, {calls.total()} calls on {RANKS} ranks, {len(wrong)} wrong")
        print("\n".join(f"  rank {r}: {report.samples[0]}, {report.samples[-1]}"
                        for r, report in enumerate(reports)))
    assert not wrong, (seed, wrong[:5])
    assert len(calls) > 40  # every kind at every place
    if count >= 10_000:
        assert not any(grown(report.samples) for report in reports), [
            grown(report.samples) for report in reports
        ]


@pytest.mark.timeout(120)
def test_a_sample_of_traffic_is_right_to_the_byte(capsys):
    soak(1_500, capsys)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_long_traffic_is_right_to_the_byte_and_nothing_grows(capsys):
    soak(100_000, capsys)
