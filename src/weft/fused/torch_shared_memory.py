"""Symmetric memory of CPU processes: files that all ranks map. Stands in for that of GPUs.

Triton's interpreter stores to addresses of this process, so kernels that write into the memory of
other ranks run on it as they do on GPUs, for tests and for ``weft gpu-check`` without a GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist

from weft.fused.triton_launch import SymmetricTensor

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class SharedFileMemory:
    """Buffers in files of ``folder``, which is the same on all ranks of the default group.

    ``near`` says which ranks stores reach; the others have address 0, as ranks of another node.
    """

    device = torch.device("cpu")

    def __init__(
        self, folder: Path, rank: int, num_ranks: int, near: Sequence[bool] | None = None
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.rank, self.num_ranks = folder, rank, num_ranks
        self.near = list(near) if near is not None else [True] * num_ranks
        self._maps: list[list[np.memmap[tuple[int], np.dtype[np.uint8]]]] = []

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> SymmetricTensor:
        """Return zeros that every rank maps."""
        size = max(int(np.prod(shape)) * dtype.itemsize, 1)
        maps = []
        for rank in range(self.num_ranks):
            path = self.folder / f"{len(self._maps)}-{rank}"
            with path.open("ab") as file:
                file.truncate(size)
            maps.append(np.memmap(path, dtype=np.uint8, mode="r+", shape=(size,)))
        self._maps.append(maps)  # as long as their addresses are used
        mine = torch.from_numpy(np.asarray(maps[self.rank])).view(dtype).view(*shape)
        here = [m.ctypes.data if near else 0 for m, near in zip(maps, self.near, strict=True)]
        dist.barrier()
        return SymmetricTensor(mine, torch.tensor(here))

    def largest(self, seconds: Sequence[float]) -> list[float]:
        """Return the element-wise maximum over all ranks."""
        values = torch.tensor(seconds, dtype=torch.float64)
        dist.all_reduce(values, dist.ReduceOp.MAX)
        found: list[float] = values.tolist()
        return found
