"""Which of several lines a span is drawn on when some are under way together."""

from collections.abc import Sequence


def first_free(starts: Sequence[float], ends: Sequence[float]) -> list[int]:
    """Give each span the first line that is free again when it starts; starts ascend.

    Spans inside others come below them, when of equal starts the longer one comes first.

    >>> first_free([0, 1, 2, 5], [4, 2, 3, 6])
    [0, 1, 1, 0]
    """
    free: list[float] = []
    chosen = []
    for start, end in zip(starts, ends, strict=True):
        place = next((i for i, then in enumerate(free) if then <= start), len(free))
        free[place : place + 1] = [end]
        chosen.append(place)
    return chosen
