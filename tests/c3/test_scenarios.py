"""The list that weft is judged by."""

from collections import Counter

import pytest

from weft.c3 import GEMMS, SCENARIOS, Gemm, Pricer, parse_gemm, without_units
from weft.errors import UsageError
from weft.hardware import platform


def test_thirty_scenarios_of_five_gemms_two_collectives_three_sizes():
    assert len(SCENARIOS) == len({each.name for each in SCENARIOS}) == 30
    assert set(Counter(each.gemm for each in SCENARIOS).values()) == {6}
    assert Counter(each.collective for each in SCENARIOS) == {"all_gather": 15, "all_to_all": 15}


def test_collectives_take_about_a_half_one_and_two_times_as_long_as_the_gemm():
    pricer = Pricer(platform("mi300x-8"))
    for each in SCENARIOS:
        wanted = float(each.name.rsplit("-", 1)[1])
        assert pricer.comm(each) / pricer.compute(each.gemm) == pytest.approx(wanted, rel=0.15)


def test_names_say_what_bounds_the_gemm():
    pricer = Pricer(platform("mi300x-8"))
    for name, gemm in GEMMS.items():
        by_units, device = pricer.grid(gemm).seconds(304), pricer.device
        bound = "cb" if by_units > pricer.traffic(gemm, 304) / device.memory_rate else "mb"
        assert name.startswith(bound) or by_units / without_units(gemm, 0, device) > 0.9


def test_a_gemm_is_read_as_it_is_written():
    assert parse_gemm(str(Gemm(1, 2, 3))) == Gemm(1, 2, 3)


@pytest.mark.parametrize("text", ["", "4096", "1x2", "1x2x3x4", "0x1x2", "ax1x2", "-1x1x1"])
def test_what_is_no_gemm_is_refused(text):
    with pytest.raises(UsageError, match="cannot read"):
        parse_gemm(text)
