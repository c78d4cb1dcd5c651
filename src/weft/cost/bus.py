"""Bus bandwidth, as nccl-tests defines it: what crosses the busiest link in a second."""

# Of the bytes that --size counts, what a rank sends, times n / (n - 1).
_SENT = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


def bus_factor(kind: str, num_ranks: int) -> float:
    """Return bus bandwidth over algorithm bandwidth.

    >>> bus_factor("all_reduce", 8), bus_factor("all_gather", 8), bus_factor("broadcast", 8)
    (1.75, 0.875, 1.0)
    """
    return _SENT[kind] * (num_ranks - 1) / num_ranks if kind in _SENT else 1.0
