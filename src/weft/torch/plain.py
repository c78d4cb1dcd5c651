"""Tensors as a world takes them: contiguous, one after another; results carried back."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import UsageError
from weft.torch.work import Handle

Finish = Callable[[], None]


class Call(NamedTuple):
    """What a collective left behind: a handle to wait for, and what is to be done then.

    ``keep`` is what it reads until then; what it writes is kept by ``finish`` or the caller.
    """

    handle: Handle | None
    finish: Finish | None = None
    keep: object = None


def readable(tensor: Tensor) -> Tensor:
    """Give the tensor's elements in one piece."""
    if tensor.is_sparse:
        raise UsageError("weft moves dense tensors, not sparse ones.", "Call to_dense() first.")
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def writable(tensor: Tensor, *, keep: bool = False) -> tuple[Tensor, Finish | None]:
    """Give room in one piece for the tensor's elements, and what carries them to it.

    ``keep``: its elements are read as well.
    """
    if tensor.is_contiguous() and not tensor.is_sparse:
        return tensor, None
    room = readable(tensor) if keep else torch.empty(tensor.shape, dtype=tensor.dtype)
    return room, lambda: _carry(tensor, room)


def joined(tensors: Sequence[Tensor]) -> Tensor:
    """Give the elements of several tensors one after another."""
    return torch.cat([readable(tensor).view(-1) for tensor in tensors])


def room_for(tensors: Sequence[Tensor]) -> tuple[Tensor, Finish | None]:
    """Give room for the elements of several tensors, and what carries them apart."""
    if len(tensors) == 1:
        return writable(tensors[0])
    sizes = [tensor.numel() for tensor in tensors]
    room = torch.empty(sum(sizes), dtype=tensors[0].dtype)

    def carry() -> None:
        for tensor, part in zip(tensors, torch.split(room, sizes), strict=True):
            _carry(tensor, part)

    return room, carry


def rooms_for(tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Finish | None]:
    """Give room for each of several tensors, and what carries them to strided ones."""
    if all(tensor.is_contiguous() for tensor in tensors):
        return tensors, None
    pairs = [writable(tensor) for tensor in tensors]

    def carry() -> None:
        for _, finish in pairs:
            if finish is not None:
                finish()

    return [room for room, _ in pairs], carry


def only(tensors: Sequence[Any]) -> Any:
    """Give the one tensor, or list, of this process."""
    if len(tensors) != 1:
        raise UsageError(f"a process has one tensor in a collective, not {len(tensors)}.")
    return tensors[0]


def require_same(tensors: Sequence[Tensor], number: int, what: str) -> None:
    """Raise unless there are that many tensors, all of one dtype."""
    if len(tensors) != number:
        raise UsageError(f"{what}: {len(tensors)} tensors where {number} are needed.")
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise UsageError(f"{what}: tensors of {dtype} and {tensor.dtype}.")


def _carry(tensor: Tensor, part: Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(part.view(tensor.shape))
