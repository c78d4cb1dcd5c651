"""Contiguous buffers for the inputs and outputs of collectives."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.errors import UsageError
from weft.torch.backend.c10d_work import Waitable

Finish = Callable[[], None]


class IssuedCollective(NamedTuple):
    """A collective in flight: what to wait for, and what to call afterwards.

    ``keep`` is the memory it reads; ``finish`` or the caller keep the memory it writes.
    """

    handle: Waitable | None
    finish: Finish | None = None
    keep: object = None


def is_dense_contiguous(tensor: Tensor) -> bool:
    """Return whether a tensor is dense, contiguous and not lazily conjugated or negated.

    ``x.conj()`` and its ``imag`` set a flag instead of changing memory.
    """
    if tensor.layout is not torch.strided:
        raise UsageError("tensors: sparse tensors are not supported.", "Call to_dense() first.")
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def contiguous_input(tensor: Tensor) -> Tensor:
    """Return the tensor, or a contiguous copy of it."""
    return (
        tensor
        if is_dense_contiguous(tensor)
        else tensor.clone(memory_format=torch.contiguous_format)
    )


def contiguous_output(tensor: Tensor, *, keep: bool = False) -> tuple[Tensor, Finish | None]:
    """Return a contiguous buffer for the tensor, and the function that copies it back.

    ``keep``: the buffer also has the tensor's elements.
    """
    if is_dense_contiguous(tensor):
        return tensor, None
    buffer = contiguous_input(tensor) if keep else torch.empty(tensor.shape, dtype=tensor.dtype)
    return buffer, partial(copy_to, tensor, buffer)


def overlaps(x: Tensor, out: Tensor, in_place: int | None = None) -> bool:
    """Return whether writing ``out`` changes data of ``x`` that other ranks still read.

    ``in_place`` is the offset of this rank's own part in ``out``, which nobody changes.
    """
    offset = x.data_ptr() - out.data_ptr()
    return -x.nbytes < offset < out.nbytes and offset != in_place


def copy_overlapping(parts: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[Tensor]:
    """Return the inputs, with copies of those that overlap an output."""
    # A set: comparing all pairs would be quadratic.
    memory = {buffer.untyped_storage().data_ptr() for buffer in buffers}
    return [
        part.clone()
        if part.untyped_storage().data_ptr() in memory and any(overlaps(part, r) for r in buffers)
        else part
        for part in parts
    ]


def concatenated(tensors: Sequence[Tensor]) -> Tensor:
    """Return the elements of several tensors as one flat tensor."""
    return torch.cat([contiguous_input(tensor).view(-1) for tensor in tensors])


def output_buffer(tensors: Sequence[Tensor]) -> tuple[Tensor, Finish | None]:
    """Return one buffer for several tensors, and the function that copies it to them."""
    if len(tensors) == 1:
        return contiguous_output(tensors[0])
    sizes = [tensor.numel() for tensor in tensors]
    buffer = torch.empty(sum(sizes), dtype=tensors[0].dtype)

    def copy_parts() -> None:
        for tensor, part in zip(tensors, torch.split(buffer, sizes), strict=True):
            copy_to(tensor, part)

    return buffer, copy_parts


def output_buffers(tensors: Sequence[Tensor]) -> tuple[Sequence[Tensor], Finish | None]:
    """Return a buffer for each tensor, and the function that copies them back."""
    if all(map(is_dense_contiguous, tensors)):
        return tensors, None
    pairs = [contiguous_output(tensor) for tensor in tensors]

    def copy_each() -> None:
        for _, finish in pairs:
            if finish is not None:
                finish()

    return [buffer for buffer, _ in pairs], copy_each


def single(tensors: Sequence[Any]) -> Any:
    """Return the only element of a list of one tensor."""
    if len(tensors) != 1:
        raise UsageError(f"tensors: expected one per process (got {len(tensors)}).")
    return tensors[0]


def require_same(tensors: Sequence[Tensor], number: int, what: str) -> None:
    """Raise unless there are ``number`` tensors of one dtype."""
    if len(tensors) != number:
        raise UsageError(f"{what}: expected {number} tensors (got {len(tensors)}).")
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype:
            raise UsageError(f"{what}: dtypes differ ({dtype} and {tensor.dtype}).")


def copy_to(tensor: Tensor, part: Tensor) -> None:
    """Copy contiguous elements to a tensor of any layout."""
    with torch.no_grad():
        tensor.copy_(part.view(tensor.shape))
