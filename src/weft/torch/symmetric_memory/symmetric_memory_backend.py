"""CPU tensors for ``torch.distributed._symmetric_memory``, which itself refuses them.

``symm_mem.empty`` and ``symm_mem.rendezvous`` call static functions of ``_SymmetricMemory``;
``register`` lets those pass CPU tensors to weft and all others to torch, as before.
"""

import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group, _SymmetricMemory
from torch.distributed.distributed_c10d import GroupName

from weft.errors import DisagreeError, RunError, UsageError
from weft.torch.backend.channel import Channel
from weft.torch.backend.group_functions import weft_group
from weft.torch.hosts.host_map import host_identity
from weft.torch.symmetric_memory.cpu_symmetric_memory import CpuSymmetricMemory
from weft.torch.symmetric_memory.shared_allocation import Octets, SharedFile, allocate, map_peer

NAME = "WEFT"  # what ``symm_mem.get_backend("cpu")`` returns
_OF_TORCH: dict[str, Callable[..., Any]] = {
    name: getattr(_SymmetricMemory, name)
    for name in ("empty_strided_p2p", "rendezvous", "get_backend", "is_symm_mem_tensor")
}


class Rendezvous(NamedTuple):
    """The files of all ranks and the memory of the others; None stands for this rank's own.

    Own memory would keep itself alive. A later group may have the name of ``channel``'s group, but
    other ranks in another order.
    """

    files: list[SharedFile]
    memory: list[Octets | None]
    channel: weakref.ref[Channel]


class CpuAllocator:
    """The allocations of this process, by address, and what was mapped for each of them."""

    def __init__(self) -> None:
        self._allocations: dict[int, tuple[SharedFile, weakref.ref[Octets]]] = {}
        self._persistent: dict[int, weakref.ref[Octets]] = {}
        self._mapped: dict[tuple[int, str], Rendezvous] = {}

    def empty(
        self,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        alloc_id: int | None = None,
    ) -> Tensor:
        """Return a tensor in new memory, whose pages are zero."""
        if alloc_id is not None and self._persistent.get(alloc_id, _nothing)() is not None:
            raise UsageError(f"alloc_id: the tensor of allocation {alloc_id} is still in use.")
        count = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        nbytes = max(1, count if math.prod(size) else 0) * dtype.itemsize
        file, memory = allocate(nbytes, _SymmetricMemory.signal_pad_size)
        address = int(memory.ctypes.data)
        held = weakref.ref(memory, lambda _: self._forget(address))
        self._allocations[address] = (file, held)
        if alloc_id is not None:
            self._persistent[alloc_id] = held
        return torch.from_numpy(memory[:nbytes]).view(dtype).as_strided(size, stride)

    def rendezvous(self, tensor: Tensor, group_name: str | None) -> CpuSymmetricMemory:
        """Map the tensor's memory of all ranks of a group; the first time it is collective."""
        group: Any = _resolve_process_group(GroupName(group_name or "0"))
        file, memory = self._found(tensor)
        address, rank = int(memory.ctypes.data), group.rank()
        offset = tensor.data_ptr() - address
        channel = weft_group(group).channel
        mapped = self._mapped.get((address, group.group_name))
        if mapped is None or mapped.channel() is not channel:
            mapped = self._mapped[address, group.group_name] = _map_all(group, channel, file)
        everyone = [memory if each is None else each for each in mapped.memory]
        return CpuSymmetricMemory(rank, mapped.files, everyone, offset, channel.world.timeout)

    def owns(self, tensor: Tensor) -> bool:
        """Return whether a tensor is in memory of this allocator."""
        return any(True for _ in self._around(tensor.data_ptr()))

    def _found(self, tensor: Tensor) -> tuple[SharedFile, Octets]:
        for found in self._around(tensor.data_ptr()):
            return found
        raise UsageError(
            "tensor: expected a tensor of symm_mem.empty (got ordinary memory).",
            'Allocate it by torch.distributed._symmetric_memory.empty(.., device="cpu").',
        )

    def _around(self, address: int) -> Iterator[tuple[SharedFile, Octets]]:
        for base, (file, held) in list(self._allocations.items()):
            memory = held()
            if memory is not None and base <= address < base + file.buffer_bytes:
                yield file, memory

    def _forget(self, address: int) -> None:
        self._allocations.pop(address, None)
        for key in [key for key in self._mapped if key[0] == address]:
            del self._mapped[key]


def _map_all(group: Any, channel: Channel, file: SharedFile) -> Rendezvous:
    """Exchange the files and map those of the other ranks; raise on all ranks if one cannot."""
    stated: list[tuple[str, SharedFile]] = [("", file)] * group.size()
    dist.all_gather_object(stated, (host_identity(), file), group=group)
    rank = group.rank()
    for other, (host, theirs) in enumerate(stated):
        if host != stated[rank][0]:
            raise UsageError(
                f"group: ranks {rank} and {other} are on different hosts "
                f"({_name(stated[rank][0])} and {_name(host)}).",
                "Symmetric memory of CPU tensors is shared memory: use a group of one host.",
            )
        if theirs[2:] != file[2:]:
            raise DisagreeError(
                f"tensor: rank {rank} has {file.buffer_bytes} bytes and a signal pad of "
                f"{file.pad_bytes}, rank {other} has {theirs.buffer_bytes} and {theirs.pad_bytes}.",
                "Every rank must allocate the same size.",
            )
    files = [theirs for _, theirs in stated]
    memory: list[Octets | None] = []
    failure = hint = ""
    try:
        memory = [None if r == rank else map_peer(theirs, r) for r, theirs in enumerate(files)]
    except RunError as error:
        failure, hint = error.message, error.hint
    # When all have mapped, any rank may drop its tensor. A rank that failed tells the others.
    failures = [("", "")] * group.size()
    dist.all_gather_object(failures, (failure, hint), group=group)
    for failure, hint in failures:
        if failure:
            raise RunError(failure, hint)
    return Rendezvous(files, memory, weakref.ref(channel))


def _name(identity: str) -> str:
    return identity.partition("\n")[0]


def _nothing() -> None:
    return None


allocator = CpuAllocator()


def register() -> None:
    """Make torch's symmetric memory pass CPU tensors to weft."""

    def empty_strided_p2p(
        size: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        group_name: str | None = None,
        alloc_id: int | None = None,
    ) -> Tensor:
        if torch.device(device).type == "cpu":
            return allocator.empty(tuple(size), tuple(stride), dtype, alloc_id)
        made: Tensor = _OF_TORCH["empty_strided_p2p"](
            size, stride, dtype, device, group_name, alloc_id
        )
        return made

    def rendezvous(tensor: Tensor, group_name: str | None = None) -> Any:
        if tensor.device.type == "cpu":
            return allocator.rendezvous(tensor, group_name)
        return _OF_TORCH["rendezvous"](tensor, group_name)

    def get_backend(device: torch.device) -> str | None:
        return NAME if device.type == "cpu" else _OF_TORCH["get_backend"](device)

    def is_symm_mem_tensor(tensor: Tensor) -> bool:
        if tensor.device.type == "cpu":
            return allocator.owns(tensor)
        return bool(_OF_TORCH["is_symm_mem_tensor"](tensor))

    for function in (empty_strided_p2p, rendezvous, get_backend, is_symm_mem_tensor):
        setattr(_SymmetricMemory, function.__name__, staticmethod(function))
