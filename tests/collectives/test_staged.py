"""Staged collectives: windows through a ring of slots, checked for races at any size."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.collectives import collective, staged
from weft.schedule import expand
from weft.schedule.check import check

pytestmark = pytest.mark.thorough

KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


def built(kind, ranks, nbytes, window, *, direct=False):
    options: dict[str, Any] = {"dtype": "float32"} if "reduce" in kind else {}
    return collective(
        kind,
        "staged",
        num_ranks=ranks,
        nbytes=nbytes,
        window=window,
        direct=direct,
        **options,
    )


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    ranks=st.integers(2, 5),
    count=st.integers(0, 700),
    window=st.sampled_from((64, 256, 1024)),
)
def test_windows_of_any_size_pass_all_checks(kind, ranks, count, window):
    nbytes = 4 * count * (1 if kind == "all_reduce" else ranks)
    for direct in (False, True):
        check(built(kind, ranks, nbytes, window, direct=direct))


@pytest.mark.parametrize("kind", KINDS)
def test_only_offsets_in_the_stage_differ_for_data_in_the_heap(kind):
    ring, direct = (expand(built(kind, 3, 36_000, 1024, direct=each)) for each in (False, True))
    stage = ring.buffers.index(staged.STAGE)
    same = (ring.access_offset == direct.access_offset) | (ring.access_buffer == stage)
    assert same.all()
    for column in ("kind", "flag_rank", "flag_index", "count", "access_rank", "access_nbytes"):
        assert np.array_equal(getattr(ring, column), getattr(direct, column)), column


def test_a_stage_stays_small_however_large_the_data():
    sizes = {b.name: b.size_on(0) for b in built("all_reduce", 2, 64 << 20, 1 << 20).buffers}
    assert sizes == {"data": 64 << 20, "stage": 2 << 20}
