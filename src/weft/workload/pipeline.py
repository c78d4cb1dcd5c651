"""In which order the stages of a pipeline carry out the passes of their micro batches."""

from __future__ import annotations


def one_forward_one_backward(num_stages: int, stage: int, num_micro: int) -> list[tuple[str, int]]:
    """Give F and B with their micro batch: as many F ahead as stages follow, then in turn.

    >>> one_forward_one_backward(2, 0, 3)
    [('F', 0), ('F', 1), ('B', 0), ('F', 2), ('B', 1), ('B', 2)]
    >>> one_forward_one_backward(2, 1, 2)
    [('F', 0), ('B', 0), ('F', 1), ('B', 1)]
    """
    ahead = min(num_micro, num_stages - 1 - stage)
    order = [("F", number) for number in range(ahead)]
    for number in range(num_micro - ahead):
        order += [("F", ahead + number), ("B", number)]
    return order + [("B", number) for number in range(num_micro - ahead, num_micro)]
