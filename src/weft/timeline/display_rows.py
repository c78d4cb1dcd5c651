"""Assigns spans that overlap in time to separate display rows."""

from collections.abc import Sequence


def assign_rows(starts: Sequence[float], ends: Sequence[float]) -> list[int]:
    """Return for each span the first row that is free when it starts; starts are ascending.

    Nested spans are placed below their parents, if longer spans come first among equal starts.
    """
    free: list[float] = []
    chosen = []
    for start, end in zip(starts, ends, strict=True):
        place = next((i for i, then in enumerate(free) if then <= start), len(free))
        free[place : place + 1] = [end]
        chosen.append(place)
    return chosen
