"""Bags of indices in the forms a user may pass them, as one flat form."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.errors import UsageError

_INTEGERS = (torch.int64, torch.int32)


class Bags(NamedTuple):
    """The bags of some tables: of each table ``samples`` bags, table after table.

    ``offsets`` has their borders: samples * tables + 1 of them, from the start of ``indices``.
    """

    indices: Tensor
    offsets: Tensor
    weights: Tensor | None
    samples: int

    def addresses(self, table: int) -> tuple[int, int, int, int, int, bool, bool]:
        """Give one table's bags as the native core reads them."""
        borders = self.offsets
        weights = 0 if self.weights is None else self.weights.data_ptr()
        start = borders.data_ptr() + table * self.samples * borders.element_size()
        return (
            *(self.indices.data_ptr(), start, weights, self.indices.numel(), self.samples),
            *(self.indices.dtype is torch.int64, borders.dtype is torch.int64),
        )


Tensors = Tensor | Sequence[Tensor]


def bags_of(
    indices: Tensors, offsets: Tensors | None, weights: Tensors | None, num_tables: int
) -> Bags:
    """Join bags of ``num_tables`` tables.

    ``indices`` is flat, with the borders of all bags in ``offsets``; or (tables, samples, rows of
    a bag) without offsets; or a list of either, one entry a table.
    """
    if isinstance(indices, Tensor):
        return _of_all(indices, offsets, _weights(weights), num_tables)
    if len(indices) != num_tables:
        raise UsageError(f"bags of {len(indices)} tables where {num_tables} are looked up here.")
    return _of_each(indices, offsets, weights)


def _of_all(
    indices: Tensor, offsets: Tensors | None, weights: Tensor | None, num_tables: int
) -> Bags:
    if offsets is None:
        return _of_equal(indices, weights, num_tables)
    if not isinstance(offsets, Tensor) or indices.dim() != 1 or offsets.dim() != 1:
        raise UsageError("offsets belong to flat indices: one tensor of each, of one dimension.")
    samples, rest = divmod(offsets.numel() - 1, max(num_tables, 1))
    if rest or samples < 0:
        raise UsageError(
            f"{offsets.numel()} offsets do not bound bags of {num_tables} tables.",
            "Pass samples * tables + 1: where each bag starts, and where the last one ends.",
        )
    return _checked(Bags(indices.contiguous(), offsets.contiguous(), weights, samples))


def _of_equal(indices: Tensor, weights: Tensor | None, num_tables: int) -> Bags:
    if indices.dim() == 2 and num_tables == 1:
        indices = indices.unsqueeze(0)
    if indices.dim() != 3 or indices.shape[0] != num_tables:
        raise UsageError(
            f"indices of shape {tuple(indices.shape)} have no offsets.",
            f"Pass offsets, or indices of shape ({num_tables}, samples, rows of a bag).",
        )
    tables, samples, rows = indices.shape
    borders = torch.arange(0, tables * samples * rows + 1, rows) if rows else None
    if borders is None:
        borders = torch.zeros(tables * samples + 1, dtype=torch.int64)
    flat = None if weights is None else weights.reshape(-1)
    return _checked(Bags(indices.reshape(-1).contiguous(), borders, flat, samples))


def _of_each(indices: Sequence[Tensor], offsets: Tensors | None, weights: Tensors | None) -> Bags:
    """Join tables that come one by one; a table's offsets may lack the end, as nn's do."""
    flats, borders, start = [], [], 0
    for number, flat in enumerate(indices):
        if offsets is None:
            one = _of_equal(flat, None, 1)
        else:
            own = offsets[number]
            if own.numel() == 0 or int(own[-1]) != flat.numel():
                own = torch.cat([own, own.new_tensor([flat.numel()])])
            one = _of_all(flat, own, None, 1)
        flats.append(one.indices)
        borders.append(one.offsets[:-1] + start)
        start += one.indices.numel()
    samples = {border.numel() for border in borders}
    if len(samples) > 1:
        raise UsageError(
            f"tables have {', '.join(map(str, sorted(samples)))} samples in one batch."
        )
    if not flats:
        none = torch.zeros(0, dtype=torch.int64)
        return Bags(none, torch.zeros(1, dtype=torch.int64), None, 0)
    end = borders[0].new_tensor([start])
    return _checked(
        Bags(torch.cat(flats), torch.cat([*borders, end]), _weights(weights), samples.pop())
    )


def _weights(weights: Tensors | None) -> Tensor | None:
    if weights is None or isinstance(weights, Tensor):
        return weights
    return torch.cat([each.reshape(-1) for each in weights])


def _checked(bags: Bags) -> Bags:
    """Look at dtypes and sizes; what indices and offsets hold is looked at when they are used."""
    for name, tensor in (("indices", bags.indices), ("offsets", bags.offsets)):
        if tensor.dtype not in _INTEGERS or tensor.device.type != "cpu":
            raise UsageError(
                f"{name} are {tensor.dtype} on {tensor.device}: int64 or int32 on cpu."
            )
    weights = bags.weights
    if weights is None:
        return bags
    if weights.numel() != bags.indices.numel() or weights.dtype is not torch.float32:
        raise UsageError(
            f"{weights.numel()} weights of {weights.dtype} for {bags.indices.numel()} indices.",
            "Pass one float32 for each index.",
        )
    return bags._replace(weights=weights.contiguous())
