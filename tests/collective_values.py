"""What each collective must leave behind, whatever the algorithm."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.collectives.parts import Chunks
from weft.schedule import Group, Schedule

Data = dict[tuple[int, str], Any]


def random_bytes(nbytes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def inputs(kind: str, schedule: Schedule, seed: int, root: int = 0) -> Data:
    """Random contents of the buffers that the caller fills."""
    data: Data = {}
    n = schedule.num_ranks
    for buffer in schedule.buffers:
        if buffer.role in ("in", "inout"):
            for rank in range(n):
                data[rank, buffer.name] = random_bytes(buffer.size_on(rank), seed * 1000 + rank)
    return data


def expected(  # noqa: C901, PLR0911 - one case a collective
    kind: str, schedule: Schedule, data: Data, root: int = 0
) -> Data:
    """What the caller must find in the buffers afterwards."""
    n = schedule.num_ranks
    in_place = any(b.name == "data" for b in schedule.buffers)
    source: Any = [data.get((rank, "data" if in_place else "in")) for rank in range(n)]
    name = "data" if in_place else "out"
    match kind:
        case "barrier":
            return {}
        case "broadcast":
            return {(rank, name): source[root] for rank in range(n)}
        case "all_reduce":
            total = np.sum(source, axis=0, dtype=np.uint8)
            return {(rank, name): total for rank in range(n)}
        case "reduce":
            total = sum(s.astype(np.uint64) for s in source).astype(np.uint8)
            return {(root, name): total}
        case "reduce_scatter":
            total = np.sum(source, axis=0, dtype=np.uint8)
            return {(rank, name): np.split(total, n)[rank] for rank in range(n)}
        case "all_gather":
            if in_place:
                source = [np.split(s, n)[rank] for rank, s in enumerate(source)]
            return {(rank, name): np.concatenate(source) for rank in range(n)}
        case "all_to_all":
            parts = [np.split(s, n) for s in source]
            return {(j, name): np.concatenate([parts[i][j] for i in range(n)]) for j in range(n)}
        case "gather":
            return {(root, name): np.concatenate(source)}
        case "scatter":
            at = Chunks(Group(n), len(source[root])).offsets
            return {(r, name): source[root][at[r] : at[r + 1]] for r in range(n)}
        case "send_recv":
            return {(n - 1, name): source[root]}
    raise AssertionError(kind)
