"""Symmetric memory of fused kernels: tensors that every rank of a job can address."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from torch.distributed import ProcessGroup


@dataclass(frozen=True, slots=True)
class SymmetricTensor:
    """A buffer that every rank has: the own one, and the address of each."""

    mine: torch.Tensor
    addresses: torch.Tensor  # int64 on the device


class SymmetricMemory(Protocol):
    """Where buffers that all ranks of a group store into come from."""

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""

    @property
    def num_ranks(self) -> int:
        """The number of ranks of the group."""

    @property
    def device(self) -> torch.device:
        """The device of the buffers."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> SymmetricTensor:
        """Return zeros that every rank can store into. Collective."""


class TorchSymmetricMemory:
    """Symmetric memory of torch on CUDA and HIP devices (``torch.distributed._symmetric_memory``).

    Not yet run on hardware: ``weft gpu-check`` runs it. Only the ranks of one NVLink or xGMI domain
    reach each other's memory; torch raises if they do not.
    """

    def __init__(self, group: ProcessGroup | None, device: torch.device) -> None:
        from torch.distributed import distributed_c10d as c10d

        self.group = group if group is not None else c10d._get_default_group()  # noqa: SLF001
        self.device = device

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return self.group.rank()

    @property
    def num_ranks(self) -> int:
        """The number of ranks of the group."""
        return self.group.size()

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> SymmetricTensor:
        """Return zeros that every rank can store into, at addresses of this process."""
        from torch.distributed import _symmetric_memory as memory
        from torch.distributed import barrier

        mine = memory.empty(*shape, dtype=dtype, device=self.device)
        handle = memory.rendezvous(mine, self.group)
        mine.zero_()
        addresses = torch.tensor(handle.buffer_ptrs, dtype=torch.int64, device=self.device)
        barrier(group=self.group)  # no rank stores before all are zero
        torch.cuda.synchronize(self.device)
        return SymmetricTensor(mine, addresses)


class SharedFileMemory:
    """Symmetric memory of CPU processes: files of ``folder`` that all ranks of the job map.

    Stands in for that of GPUs. Triton's interpreter stores to addresses of this process, so kernels
    that write into the memory of other ranks run on it as they do on GPUs, for tests and for
    ``weft gpu-check`` without a GPU.
    """

    device = torch.device("cpu")

    def __init__(self, folder: Path, rank: int, num_ranks: int) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.rank, self.num_ranks = folder, rank, num_ranks
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
        dist.barrier()
        return SymmetricTensor(mine, torch.tensor([each.ctypes.data for each in maps]))
