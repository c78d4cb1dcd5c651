import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.collective_case import KINDS, CollectiveCase, RankCall, arrays_of

each_kind = pytest.mark.parametrize("kind", KINDS)


def reference(exchange, rank):
    """What a rank must have, from the inputs alone."""
    everyone = [exchange.given(r) for r in range(exchange.num_ranks)]
    total = np.sum(everyone, axis=0, dtype=np.float32)
    n = exchange.num_ranks
    return {
        "broadcast": lambda: everyone[0],
        "all_gather": lambda: np.concatenate(everyone),
        "all_to_all": lambda: np.concatenate([np.split(x, n)[rank] for x in everyone]),
        "reduce_scatter": lambda: np.split(total, n)[rank],
        "all_reduce": lambda: total,
    }[exchange.kind]()


@each_kind
@given(num_ranks=st.integers(2, 5), share=st.integers(1, 70))
def test_a_right_result_has_no_wrong_element(kind, num_ranks, share):
    exchange = CollectiveCase(kind, 4 * num_ranks * share, num_ranks)
    for rank in range(num_ranks):
        have = reference(exchange, rank)
        assert len(have) == (exchange.room or exchange.given_count)
        assert exchange.count_wrong(rank, have) == 0


@each_kind
@given(num_ranks=st.integers(2, 5), share=st.integers(1, 70), data=st.data())
def test_every_wrong_element_is_counted(kind, num_ranks, share, data):
    exchange = CollectiveCase(kind, 4 * num_ranks * share, num_ranks)
    rank = data.draw(st.integers(0, num_ranks - 1))
    have = reference(exchange, rank).copy()
    broken = data.draw(st.sets(st.integers(0, len(have) - 1), min_size=1))
    have[list(broken)] += 1
    assert exchange.count_wrong(rank, have) == len(broken)


@pytest.mark.parametrize("kind", ["all_gather", "all_to_all"])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_parts_of_other_ranks_are_not_taken_for_right(kind, num_ranks):
    exchange = CollectiveCase(kind, 1 << 12, num_ranks)
    have = reference(exchange, 0)
    turned = np.roll(have, len(have) // num_ranks)
    assert exchange.count_wrong(0, turned) > len(have) * 0.9


@each_kind
def test_a_call_that_does_nothing_is_wrong(kind):
    exchange = CollectiveCase(kind, 1 << 10, 2)
    x, out = arrays_of(exchange, 1)
    assert RankCall(exchange, 1, x, out, lambda: None).answer() > 0
