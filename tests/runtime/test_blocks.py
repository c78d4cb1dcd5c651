"""Blocks of a region never overlap, and who asks alike gets alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import RunError
from weft.runtime.blocks import PAGE, Blocks


@given(st.lists(st.tuples(st.integers(0, 5 * PAGE), st.booleans()), max_size=30))
def test_blocks_never_overlap(steps):
    one, other = Blocks(1 << 30), Blocks(1 << 30)
    taken: dict[int, int] = {}
    for nbytes, gives_back in steps:
        if gives_back and taken:
            start = next(iter(taken))
            del taken[start]
            one.give_back(start)
            other.give_back(start)
            continue
        start = one.take(nbytes)
        assert start == other.take(nbytes)
        assert start % PAGE == 0
        assert all(
            start + nbytes <= begin or begin + size <= start for begin, size in taken.items()
        )
        if nbytes:
            taken[start] = nbytes


def test_what_is_given_back_can_be_taken_again():
    blocks = Blocks(4 * PAGE)
    first, second = blocks.take(PAGE), blocks.take(3 * PAGE)
    blocks.give_back(first)
    assert blocks.take(PAGE) == first
    assert second == PAGE


def test_more_than_there_is_is_an_error():
    blocks = Blocks(2 * PAGE)
    blocks.take(PAGE)
    with pytest.raises(RunError, match="do not fit a rank's"):
        blocks.take(2 * PAGE)
