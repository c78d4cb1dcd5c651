import pytest

from benchmarks.limits import AtMost, Faster, judged
from benchmarks.rows import Row
from weft.local_runs.contest import PeerTiming

ROW = Row("b", {}, (3e-6,), {"gloo": PeerTiming(30e-6, 10.0), "mpich": PeerTiming(6e-6, 2.0)})


@pytest.mark.parametrize(
    ("limits", "reached", "met"),
    [
        ([AtMost(4e-6)], "3 us", True),
        ([AtMost(2e-6)], "3 us", False),
        ([Faster(10, ("gloo",))], "10.00x gloo", True),
        ([Faster(3, ("gloo", "mpich"))], "2.00x mpich", False),
        ([Faster(1, ("openmpi",))], "not measured", None),
        ([Faster(1, ("openmpi", "mpich"))], "2.00x mpich", None),
        ([Faster(3, ("openmpi", "mpich"))], "2.00x mpich", False),
        ([AtMost(2e-6), Faster(1, ("openmpi",))], "3 us; not measured", False),
        ([AtMost(4e-6), Faster(1.5, ("mpich",))], "3 us; 2.00x mpich", True),
    ],
)
def test_a_figure_is_met_if_all_of_it_is(limits, reached, met):
    verdict = judged(ROW, limits)
    assert verdict["reached"] == reached
    assert verdict["met"] is met


def test_what_must_be_reached_is_said_in_words():
    verdict = judged(ROW, [AtMost(2e-6), Faster(1.5, ("openmpi", "mpich"))])
    assert verdict["must"] == "at most 2 us; 1.5x the best of openmpi, mpich"
