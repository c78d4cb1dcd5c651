"""The handle that ``symm_mem.rendezvous`` returns for CPU tensors.

It has the interface of torch's ``_SymmetricMemory``: buffers of peers as tensors or addresses,
signal pads, and barriers and signals on them. Peers' memory is mapped, so loads and stores of
torch, of native code and of Triton's interpreter reach it directly.
"""

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from weft._core import put_signal, take_signal
from weft.errors import RankDiedError, RunTimeoutError, UsageError
from weft.torch.symmetric_memory.shared_allocation import Octets, SharedFile, padded

_WORD = 4  # bytes of a signal
_LOOK = 0.05  # seconds between two checks that a peer is alive


class CpuSymmetricMemory:
    """One tensor of every rank of a group, mapped by all of them.

    Threads: any number may use it at once; a channel of signals is for one thread of each rank.
    """

    def __init__(
        self,
        rank: int,
        files: Sequence[SharedFile],
        memory: Sequence[Octets],
        offset: int,
        timeout: float,
    ) -> None:
        self.rank, self.world_size = rank, len(files)
        self.device = torch.device("cpu")
        self.offset = offset  # bytes of the tensor in its allocation
        self._files, self._memory, self._timeout = files, memory, timeout
        self.buffer_ptrs = [int(each.ctypes.data) for each in memory]
        self.signal_pad_ptrs = [
            address + padded(file.buffer_bytes)
            for address, file in zip(self.buffer_ptrs, files, strict=True)
        ]
        self._addresses = np.array([self.buffer_ptrs, self.signal_pad_ptrs], np.int64)

    @property
    def buffer_ptrs_dev(self) -> int:
        """The address of an array of the addresses of all buffers, for kernels."""
        return int(self._addresses[0].ctypes.data)

    @property
    def signal_pad_ptrs_dev(self) -> int:
        """The address of an array of the addresses of all signal pads, for kernels."""
        return int(self._addresses[1].ctypes.data)

    @property
    def buffer_size(self) -> int:
        """The bytes of a buffer."""
        return self._files[self.rank].buffer_bytes

    @property
    def signal_pad_size(self) -> int:
        """The bytes of a signal pad."""
        return self._files[self.rank].pad_bytes

    @property
    def multicast_ptr(self) -> int:
        """0: there is no multicast between processes."""
        return 0

    def has_multicast_support(self) -> bool:
        """Return False."""
        return False

    def get_buffer(
        self, rank: int, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int = 0
    ) -> Tensor:
        """Return the buffer of a rank as a tensor; ``storage_offset`` counts elements."""
        buffer = self._of(rank)[: self.buffer_size]
        return _tensor("get_buffer", buffer, sizes, dtype, storage_offset)

    def get_remote_tensor(self, peer: int, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return the tensor of a rank that corresponds to the one of the rendezvous."""
        offset, rest = divmod(self.offset, dtype.itemsize)
        if rest:
            raise UsageError(
                f"dtype: the tensor begins {self.offset} bytes into its memory, which is no "
                f"multiple of the {dtype.itemsize} bytes of {dtype}.",
                "Use the dtype of the tensor, or call rendezvous with a tensor that is aligned.",
            )
        return self.get_buffer(peer, sizes, dtype, offset)

    def get_signal_pad(
        self,
        rank: int,
        sizes: Sequence[int] = (),
        dtype: torch.dtype | None = None,
        storage_offset: int = 0,
    ) -> Tensor:
        """Return the signal pad of a rank as a tensor, by default all of it as uint32."""
        dtype, pad = dtype or torch.uint32, self._of(rank)[padded(self.buffer_size) :]
        if not sizes:
            sizes = (max(0, len(pad) // dtype.itemsize - storage_offset),)
        return _tensor("get_signal_pad", pad, sizes, dtype, storage_offset)

    def barrier(self, channel: int = 0, timeout_ms: int = 0) -> None:
        """Wait until all ranks have called it; writes before it are seen after it."""
        others = [(self.rank + step) % self.world_size for step in range(1, self.world_size)]
        for rank in others:
            self.put_signal(rank, channel, timeout_ms)
        for rank in others:
            self.wait_signal(rank, channel, timeout_ms)

    def put_signal(self, dst_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Signal a rank; waits until it has taken the last signal of this rank and channel."""
        word = self._word(dst_rank, channel, self.rank)
        self._until(put_signal, word, dst_rank, timeout_ms, f"put_signal on channel {channel}")

    def wait_signal(self, src_rank: int, channel: int = 0, timeout_ms: int = 0) -> None:
        """Wait for a signal of a rank, and take it."""
        self._of(src_rank)
        word = self._word(self.rank, channel, src_rank)
        self._until(take_signal, word, src_rank, timeout_ms, f"wait_signal on channel {channel}")

    def _of(self, rank: int) -> Octets:
        if not 0 <= rank < self.world_size:
            raise UsageError(f"rank: must be from 0 to {self.world_size - 1} (got {rank}).")
        return self._memory[rank]

    def _word(self, rank: int, channel: int, sender: int) -> int:
        """Return the address of the signals from a rank in another one's pad."""
        self._of(rank)
        at = (channel * self.world_size + sender) * _WORD
        if channel < 0 or at + _WORD > self.signal_pad_size:
            most = self.signal_pad_size // _WORD // self.world_size
            raise UsageError(
                f"channel: must be from 0 to {most - 1} (got {channel}).",
                "Call symm_mem.set_signal_pad_size before the first allocation.",
            )
        return self.signal_pad_ptrs[rank] + at

    def _until(
        self,
        act: Callable[[int, float], bool],
        word: int,
        peer: int,
        timeout_ms: int,
        doing: str,
    ) -> None:
        """Act, or raise: the peer died, or the timeout (by default the group's) is over."""
        timeout = timeout_ms / 1000 or self._timeout
        deadline = time.monotonic() + timeout
        while not act(word, min(_LOOK, max(0.0, deadline - time.monotonic()))):
            pid = self._files[peer].pid
            if not _is_running(pid):
                raise RankDiedError(
                    f"rank {peer} died (pid {pid}) while rank {self.rank} waited at {doing}.",
                    f"Check the output of rank {peer} for the reason.",
                )
            if time.monotonic() >= deadline:
                raise RunTimeoutError(
                    f"rank {self.rank} timed out after {timeout:g} s at {doing} with rank {peer}.",
                    "If the other ranks are only slow, pass a longer timeout.",
                )


def _tensor(
    what: str, memory: Octets, sizes: Sequence[int], dtype: torch.dtype, storage_offset: int
) -> Tensor:
    if any(size < 0 for size in sizes) or storage_offset < 0:
        raise UsageError(
            f"{what}: sizes and storage_offset must be >= 0 (got {tuple(sizes)} at "
            f"{storage_offset})."
        )
    start = storage_offset * dtype.itemsize
    stop = start + math.prod(sizes) * dtype.itemsize
    if stop > len(memory):
        raise UsageError(
            f"{what}: {tuple(sizes)} of {dtype} at {storage_offset} needs {stop} bytes "
            f"(expected at most {len(memory)})."
        )
    return torch.from_numpy(memory[start:stop]).view(dtype).view(tuple(sizes))


def _is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    if pid == os.getpid():
        return True
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
