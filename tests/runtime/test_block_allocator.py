"""Blocks of a region never overlap, and who asks alike gets alike."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weft.errors import RunError
from weft.runtime.block_allocator import PAGE, BlockAllocator


@given(st.lists(st.tuples(st.integers(0, 5 * PAGE), st.booleans()), max_size=30))
def test_blocks_never_overlap(steps):
    one, other = BlockAllocator(1 << 30), BlockAllocator(1 << 30)
    taken: dict[int, int] = {}
    for nbytes, gives_back in steps:
        if gives_back and taken:
            start = next(iter(taken))
            del taken[start]
            one.free(start)
            other.free(start)
            continue
        start = one.allocate(nbytes)
        assert start == other.allocate(nbytes)
        assert start % PAGE == 0
        assert all(
            start + nbytes <= begin or begin + size <= start for begin, size in taken.items()
        )
        if nbytes:
            taken[start] = nbytes


def test_what_is_given_back_can_be_taken_again():
    blocks = BlockAllocator(4 * PAGE)
    first, second = blocks.allocate(PAGE), blocks.allocate(3 * PAGE)
    blocks.free(first)
    assert blocks.allocate(PAGE) == first
    assert second == PAGE


def test_more_than_there_is_is_an_error():
    blocks = BlockAllocator(2 * PAGE)
    blocks.allocate(PAGE)
    with pytest.raises(RunError, match=r"cannot allocate .* of a rank's"):
        blocks.allocate(2 * PAGE)
