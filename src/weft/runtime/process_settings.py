"""What a rank asks of the operating system for itself: a core of its own, and readable memory.

Ranks that oversubscribe the cores are pinned, each to one core, unless they are pinned already:
the scheduler may leave three of four ranks on one of two cores for a while, and a step waits for
the slowest. DDP steps took a quarter longer than with two ranks on each core.
"""

import ctypes
import os
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_

from weft.errors import UsageError

_PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: "Yama"


def allow_sibling_reads() -> bool:
    """Allow the launcher of this process and its descendants to read this process's memory.

    Yama (``kernel.yama.ptrace_scope`` 1, as on Ubuntu) forbids a process to read any but its
    own children. A process may name one other process, which is then allowed with all of its
    descendants. Ranks of one launcher are siblings, so naming it allows only them. Process 1 is
    never named: it would allow every process of the user. Always returns True: whether it helped
    is found out by reading.
    """
    launcher = os.getppid()
    if launcher > 1:  # an error only means that there is no Yama
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, ctypes.c_ulong(launcher), 0, 0, 0)
    return True


VARIABLE = "WEFT_PLACE"
PLACES = ("cores", "system")


def own_core(
    rank: int, masks: Sequence[int], environ: Mapping[str, str] = os.environ
) -> frozenset[int] | None:
    """Return the core of this rank, or None if the scheduler chooses better.

    ``masks`` are the affinities of all ranks, a bit per core. Ranks with different masks were
    pinned by their launcher; a number of ranks that is not a multiple of the cores is left to the
    scheduler.

    >>> own_core(3, [0b11] * 4, {}), own_core(1, [0b11] * 2, {}), own_core(0, [1, 2, 1, 2], {})
    (frozenset({1}), None, None)
    """
    wish = environ.get(VARIABLE) or PLACES[0]
    if wish not in PLACES:
        raise UsageError(f"{VARIABLE}: unknown value {wish!r}.", f"Use one of {', '.join(PLACES)}.")
    cores = [core for core in range(masks[rank].bit_length()) if masks[rank] >> core & 1]
    alike = all(mask == masks[rank] for mask in masks)
    shared = len(cores) > 1 and len(masks) > len(cores) and len(masks) % len(cores) == 0
    if wish == "system" or not alike or not shared:
        return None
    return frozenset((cores[rank % len(cores)],))


def num_cores(masks: Sequence[int]) -> int:
    """Return the number of cores that all ranks may use together."""
    return reduce(or_, masks).bit_count()
