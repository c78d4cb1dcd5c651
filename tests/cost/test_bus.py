"""Bus bandwidth compared with that of nccl-tests."""

import pytest

from weft.cost.bus import bus_factor


@pytest.mark.parametrize(
    ("kind", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("broadcast", 1),
        ("send_recv", 1),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(kind, factor):
    assert bus_factor(kind, 4) == factor
