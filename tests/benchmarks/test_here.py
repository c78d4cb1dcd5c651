"""Prices compared with runs: every case has both, and the last row says how near they came."""

from __future__ import annotations

import pytest

from benchmarks import here
from benchmarks.rows import Options
from tests.calibration.test_machine_calibration import measured
from weft.errors import UnknownNameError

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]


def test_every_case_is_priced_and_run(monkeypatch):
    found = measured()
    monkeypatch.setattr(here, "STEPS", [(name, name) for name in found])
    monkeypatch.setattr(here, "measure_step", found.__getitem__)
    options = Options(collectives=("all_gather",), algorithms=("ring", "chain"), sizes=(4096,))
    *rows, total = here.run(options)
    assert here.count_rows(options) == 2
    assert [row.case["algorithm"] for row in rows] == ["ring"]  # there is no such chain
    for row in rows:
        assert row.seconds > 0
        assert row.more["predicted"] == pytest.approx(row.seconds * (1 + row.more["error"]))
    assert total.more["median error"] == pytest.approx(abs(rows[0].more["error"]))


def test_an_unknown_collective_is_refused():
    with pytest.raises(UnknownNameError, match="unknown collective 'gather_all'"):
        list(here.run(Options(collectives=("gather_all",))))
