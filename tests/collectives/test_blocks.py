from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.block_gather import gather_blocks
from tests.arrays import Machine
from weft.errors import UsageError
from weft.schedule.check import check


@given(numbers=st.lists(st.integers(0, 9), max_size=30), block_bytes=st.integers(1, 9))
def test_blocks_stand_in_the_order_asked_for(numbers, block_bytes):
    schedule = gather_blocks(numbers, block_bytes, 10)
    check(schedule)
    machine = Machine(schedule)
    machine.memory[0, "pool"][:] = np.arange(10 * block_bytes)
    machine.run()
    blocks = machine.memory[0, "pool"].reshape(10, block_bytes)
    assert np.array_equal(machine.memory[0, "cache"], blocks[numbers].ravel())


@pytest.mark.parametrize("number", [-1, 10])
def test_a_block_that_is_not_there_is_refused(number):
    with pytest.raises(UsageError, match=f"block {number} is out of range"):
        gather_blocks([number], 4, 10)
