"""How much of what an op touches has left the caches since it was touched last.

A step repeats itself, so every block of memory has a distance: the bytes of all other blocks that
were touched since. A cache that keeps what was used last holds a block whose distance is less
than its room (Mattson's stacks, 1970).
"""

from collections import OrderedDict
from collections.abc import Sequence

Touched = Sequence[tuple[int, int]]  # blocks of memory by number, with the bytes that are touched


def missing_shares(step: Sequence[Touched], capacity: float) -> list[float]:
    """Return for each op of a step that is repeated the share of its bytes that is not cached.

    >>> missing_shares([[(1, 10)], [(2, 80)], [(1, 10)]], capacity=50)
    [0.0, 1.0, 1.0]
    """
    recent: OrderedDict[int, int] = OrderedDict()
    _run_lru(recent, step, capacity)  # the first time everything is missing
    return _run_lru(recent, step, capacity)


def _run_lru(
    recent: "OrderedDict[int, int]", step: Sequence[Touched], capacity: float
) -> list[float]:
    shares = []
    for touched in step:
        blocks: dict[int, int] = {}
        for block, nbytes in touched:
            blocks[block] = max(nbytes, blocks.get(block, 0))
        cached = _within(recent, capacity)
        total = sum(blocks.values())
        missing = sum(nbytes for block, nbytes in blocks.items() if block not in cached)
        shares.append(missing / total if total else 0.0)
        for block, nbytes in blocks.items():
            recent[block] = nbytes
            recent.move_to_end(block)
    return shares


def _within(recent: "OrderedDict[int, int]", capacity: float) -> set[int]:
    """List the blocks that were touched last and together fit into the room."""
    found: set[int] = set()
    for block in reversed(recent):
        capacity -= recent[block]
        if capacity < 0:
            break
        found.add(block)
    return found
