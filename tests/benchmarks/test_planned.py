"""Planned steps compared with default ones: cases, the second host, and a row measured for real."""

import pytest

from benchmarks import planned
from benchmarks.planned import LINKS
from benchmarks.rows import Options
from weft.errors import UnknownNameError, UsageError
from weft.local_runs import contest
from weft.local_runs.planned_model import machine
from weft.local_runs.synthetic_models import SyntheticDlrm, SyntheticTransformer

SMALL = {
    "dlrm": SyntheticDlrm(((500, 4, 1.05),) * 4, 16, (16, 16), (16, 1), 64),
    "transformer": SyntheticTransformer("gpt2", 32, 1, 2, 64, 64, 16, 4),
}


def test_a_row_for_every_model_and_link():
    assert planned.count_rows(Options()) == 4
    assert planned.count_rows(Options(collectives=("dlrm",), rates=(1e9,))) == 1


def test_a_model_that_nobody_knows_is_said():
    with pytest.raises(UnknownNameError, match="unknown model 'dlmr'"):
        next(iter(planned.run(Options(collectives=("dlmr",)))))


def test_a_machine_that_was_not_calibrated_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(UsageError, match="not calibrated"):
        next(iter(planned.run(Options())))


def test_two_hosts_have_a_rank_each_and_the_link_between_them():
    far = machine(LINKS["1gbit"])
    assert (far.num_ranks, far.num_nodes) == (2, 2)
    assert far.name.endswith("@1gbit")
    assert machine(0.0).num_nodes == 1


@pytest.mark.torch
@pytest.mark.multiprocess
@pytest.mark.timeout(150)
def test_planned_steps_lose_as_default_ones_do_and_say_their_ways(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(planned, "is_calibrated", lambda: True)  # it runs, but plans nothing
    monkeypatch.setattr(contest, "LONG_ENOUGH", 0)
    monkeypatch.setattr(planned, "MODELS", SMALL)
    monkeypatch.setattr(planned, "REPETITIONS", 1)
    rows = list(planned.run(Options(rounds=1, rates=(0.0,))))
    assert [row.case["model"] for row in rows] == ["dlrm", "transformer"]
    for row in rows:
        assert row.more["loss_difference"] <= 1e-5
        assert row.more["predicted"] <= row.more["predicted_default"]
        assert row.more["gain"] == pytest.approx(1 - 1 / row.peers["gloo"].ratio)
        assert any("all_reduce" in way for way in row.more["paths"])
