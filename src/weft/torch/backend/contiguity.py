"""Tensors as a world takes them: contiguous, one after another; results carried back."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import UsageError
from weft.torch.backend.c10d_work import Waitable

Finish = Callable[[], None]


class IssuedCollective(NamedTuple):
    """What a collective left behind: a handle to wait for, and what is to be done then.

    ``keep`` is what it reads until then; what it writes is kept by ``finish`` or the caller.
    """

    handle: Waitable | None
    finish: Finish | None = None
    keep: object = None


def is_dense_contiguous(tensor: Tensor) -> bool:
    """Tell whether a tensor's elements lie in one piece, as they are.

    Those of ``x.conj()`` and its ``imag`` are turned only when they are read.
    """
    if tensor.layout is not torch.strided:
        raise UsageError("weft moves dense tensors, not sparse ones.", "Call to_dense() first.")
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def contiguous_input(tensor: Tensor) -> Tensor:
    """Give the tensor's elements in one piece."""
    return (
        tensor
        if is_dense_contiguous(tensor)
        else tensor.clone(memory_format=torch.contiguous_format)
    )


def contiguous_output(tensor: Tensor, *, keep: bool = False) -> tuple[Tensor, Finish | None]:
    """Give room in one piece for the tensor's elements, and what carries them to it.

    ``keep``: its elements are read as well.
    """
    if is_dense_contiguous(tensor):
        return tensor, None
    room = contiguous_input(tensor) if keep else torch.empty(tensor.shape, dtype=tensor.dtype)
    return room, partial(copy_to, tensor, room)


def overlaps(x: Tensor, out: Tensor, in_place: int | None = None) -> bool:
    """Tell whether writing ``out`` changes what others still have to read of ``x``.

    At ``in_place`` bytes behind the beginning of ``out`` its own part lies, which nobody changes.
    """
    offset = x.data_ptr() - out.data_ptr()
    return -x.nbytes < offset < out.nbytes and offset != in_place


def copy_overlapping(parts: Sequence[Tensor], rooms: Sequence[Tensor]) -> list[Tensor]:
    """Give the parts, copies of those that lie where something is written."""
    memory = {room.untyped_storage().data_ptr() for room in rooms}  # looked up, not each by each
    return [
        part.clone()
        if part.untyped_storage().data_ptr() in memory and any(overlaps(part, r) for r in rooms)
        else part
        for part in parts
    ]


def concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """Give the elements of several tensors one after another."""
    return torch.cat([contiguous_input(tensor).view(-1) for tensor in tensors])


def output_buffer(tensors: Sequence[Tensor]) -> tuple[Tensor, Finish | None]:
    """Give room for the elements of several tensors, and what carries them apart."""
    if len(tensors) == 1:
        return contiguous_output(tensors[0])
    sizes = [tensor.numel() for tensor in tensors]
    room = torch.empty(sum(sizes), dtype=tensors[0].dtype)

    def carry_apart() -> None:
        for tensor, part in zip(tensors, torch.split(room, sizes), strict=True):
            copy_to(tensor, part)

    return room, carry_apart


def output_buffers(tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Finish | None]:
    """Give room for each of several tensors, and what carries them to strided ones."""
    if all(map(is_dense_contiguous, tensors)):
        return tensors, None
    pairs = [contiguous_output(tensor) for tensor in tensors]

    def carry_each() -> None:
        for _, finish in pairs:
            if finish is not None:
                finish()

    return [room for room, _ in pairs], carry_each


def single(tensors: Sequence[Any]) -> Any:
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


def copy_to(tensor: Tensor, part: Tensor) -> None:
    """Write elements in one piece to a tensor of any layout."""
    with torch.no_grad():
        tensor.copy_(part.view(tensor.shape))
