"""Where ranks run that outnumber the cores: each on one of them, unless somebody gave it a place.

The system may leave three of four ranks on one of two cores for a while, and a step waits for the
slowest: measured, steps of DDP took a quarter longer than with two ranks on each.
"""

import os
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import or_
from pathlib import Path

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


def neighbours(
    rank: int,
    masks: Sequence[int],
    groups: Sequence[object],
    environ: Mapping[str, str] = os.environ,
) -> list[int]:
    """List the ranks that take turns with this one on a core and that a yield does not reach.

    ``groups`` are what the system schedules each rank with; a yield reaches one's own group. Of
    ranks that have no core of their own any other one may stand in the way.

    >>> (
    ...     neighbours(0, [0b11] * 4, ["a", "b", "c", "d"], {}),
    ...     neighbours(0, [0b11] * 4, ["a"] * 4, {}),
    ... )
    ([2], [])
    """
    if len(masks) <= num_cores(masks):
        return []
    mine = own_core(rank, masks, environ)
    others = [r for r in range(len(masks)) if r != rank and own_core(r, masks, environ) == mine]
    return others if any(groups[other] != groups[rank] for other in others) else []


def scheduled_with(pid: int | str = "self", proc: Path = Path("/proc")) -> str:
    """Name the group with which the system schedules a process: its session and its container.

    Sessions are groups where ``sched_autogroup_enabled`` says so: sched(7).
    """
    words = []
    enabled = proc / "sys/kernel/sched_autogroup_enabled"
    for path in (proc / str(pid) / "autogroup", proc / str(pid) / "cgroup"):
        try:
            if path.name != "autogroup" or enabled.read_text(encoding="ascii").strip() != "0":
                words.append(path.read_text(encoding="utf-8").split(" nice ")[0].strip())
        except OSError:  # this system has none
            words.append("")
    return " ".join(words)
