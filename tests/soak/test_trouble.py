"""Ranks that come to harm in traffic: all others are told who, in which call, and nothing stays.

``WEFT_SEED`` replays a run.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.soak.driver import lines_of
from tests.soak.trouble import TROUBLES

pytestmark = [pytest.mark.torch, pytest.mark.multiprocess]


def soak(count: int, *with_torch: str) -> str:
    """A line that says what was told; every survivor of every trial was told well."""
    trials = lines_of("tests.soak.trouble", count, *with_torch)
    wrong = [trial for trial in trials if trial["wrong"]]
    assert not wrong, wrong[:3]
    assert len(trials) == count
    told = Counter(answer["kind"] for trial in trials for answer in trial["answers"])
    return f"{count} troubles, told: {dict(told)}"


@pytest.mark.timeout(120)
def test_a_sample_of_troubles_is_told_and_leaves_nothing():
    soak(TROUBLES.index("kill all") + 1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_hundred_troubles_are_told_and_leave_nothing(capsys):
    line = soak(200, "torch")
    with capsys.disabled():
        print(f"\n{line}")  # noqa: T201 - what a soak found is worth reading
