"""Ticks of axes: round numbers around the values."""

import math
from collections.abc import Iterable


def log_ticks(values: Iterable[float], base: int = 10, most: int = 8) -> list[float]:
    """Return powers around positive values, at least two, as many as ``most`` allows.

    >>> log_ticks([3, 500]), log_ticks([1024, 1 << 20], base=2, most=6)
    ([1.0, 10.0, 100.0, 1000.0], [1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0])
    """
    found = [value for value in values if 0 < value < math.inf] or [1.0]
    low = math.floor(math.log(min(found), base) + 1e-9)
    high = max(math.ceil(math.log(max(found), base) - 1e-9), low + 1)
    step = math.ceil((high - low) / (most - 1))
    count = math.ceil((high - low) / step)
    return [float(base) ** (low + step * i) for i in range(count + 1)]
