"""Where ranks run that outnumber the cores: each on one of them, unless somebody gave it a place.

The system may leave three of four ranks on one of two cores for a while, and a step waits for the
slowest: measured, steps of DDP took a quarter longer than with two ranks on each.
"""

import os
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from weft.errors import UsageError

VARIABLE = "WEFT_PLACE"
PLACES = ("cores", "system")


def own_core(
    rank: int, masks: Sequence[int], environ: Mapping[str, str] = os.environ
) -> frozenset[int] | None:
    """Give the core of this rank, or None where the system chooses better.

    ``masks`` are the cores that every rank may use, a bit for each. Ranks that may use different
    ones were placed by whoever started them; a number that cores do not share evenly is left to
    the system, which lets all of them take turns.

    >>> own_core(3, [0b11] * 4, {}), own_core(1, [0b11] * 2, {}), own_core(0, [1, 2, 1, 2], {})
    (frozenset({1}), None, None)
    """
    wish = environ.get(VARIABLE) or PLACES[0]
    if wish not in PLACES:
        raise UsageError(f"{VARIABLE} is {wish!r}.", f"It is one of {', '.join(PLACES)}.")
    cores = [core for core in range(masks[rank].bit_length()) if masks[rank] >> core & 1]
    alike = all(mask == masks[rank] for mask in masks)
    shared = len(cores) > 1 and len(masks) > len(cores) and len(masks) % len(cores) == 0
    if wish == "system" or not alike or not shared:
        return None
    return frozenset((cores[rank % len(cores)],))


def num_cores(masks: Sequence[int]) -> int:
    """Count the cores that all ranks may use together."""
    return reduce(or_, masks).bit_count()
