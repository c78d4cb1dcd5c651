"""Gathering blocks of a pool into contiguous memory, such as the KV cache of a resumed request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.collectives.parts import launched, own
from weft.errors import UsageError
from weft.schedule import Buffer, Copy, Program, Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence


def gather_blocks(numbers: Sequence[int], block_bytes: int, pool_blocks: int) -> Schedule:
    """Build copies of the blocks ``numbers``, in that order, from ``pool`` to ``cache``.

    One command per block: the schedule is prepared once, and one call executes all of them.
    """
    for number in numbers:
        if not 0 <= number < pool_blocks:
            raise UsageError(
                f"numbers: block {number} is out of range (the pool has {pool_blocks} blocks).",
                f"Use 0 to {pool_blocks - 1}.",
            )
    copies = tuple(
        Copy(
            own("pool", number * block_bytes, block_bytes),
            own("cache", index * block_bytes, block_bytes),
        )
        for index, number in enumerate(numbers)
    )
    buffers = (
        Buffer("pool", pool_blocks * block_bytes, "in"),
        Buffer("cache", len(numbers) * block_bytes, "out"),
    )
    return Schedule("gather of blocks", 1, (Program((0,), (launched(copies),)),), buffers)
