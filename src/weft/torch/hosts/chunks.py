"""Tensors between hosts, as bytes and in chunks."""

import torch
from torch import Tensor


def as_bytes(x: Tensor) -> Tensor:
    """Return a contiguous tensor as bytes."""
    if x.dtype is torch.uint8 and x.dim() == 1:  # fast path of pieces: a view takes microseconds
        return x
    # A dimension of one element may have any stride, which a view of other items would refuse.
    return x.as_strided((x.numel(),), (1,)).view(torch.uint8)


def chunks(x: Tensor, nbytes: int) -> list[Tensor]:
    """Split a contiguous tensor into pieces of so many bytes; an empty one has none."""
    flat = x.view(-1)
    return list(torch.split(flat, max(nbytes // x.element_size(), 1))) if flat.numel() else []
