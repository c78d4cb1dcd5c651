"""Embedding tables as passed to a module, and the memory of the shards that a rank holds."""

import mmap
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from weft._core import TableElement
from weft.errors import UsageError
from weft.fused import EmbeddingTable, TableShard

TableInput = Tensor | nn.Embedding | nn.EmbeddingBag | tuple[int, int]
ELEMENTS = {
    torch.float32: TableElement.FLOAT32,
    torch.bfloat16: TableElement.BFLOAT16,
    torch.float16: TableElement.FLOAT16,
    torch.uint8: TableElement.QUANTIZED,
}
_TAIL = 8  # bytes after a row of a quantized table: its scale and its bias
_LARGE_PAGE = 2 << 20  # bytes of a huge page of x86-64


class TableSource(NamedTuple):
    """A table, and its initial values, if any were given."""

    table: EmbeddingTable
    values: Tensor | None
    dtype: torch.dtype


def sources_of(tables: Mapping[str, TableInput] | Sequence[TableInput]) -> list[TableSource]:
    """Return the tables that a user passed; raise unless all have one dtype."""
    named = tables if isinstance(tables, Mapping) else {f"t{i}": t for i, t in enumerate(tables)}
    sources = [_source(name, given) for name, given in named.items()]
    for source in sources:
        if source.dtype is not sources[0].dtype:
            first, other = sources[0], source
            raise UsageError(
                f"tables: dtypes differ ({first.table.name!r} is {first.dtype}, "
                f"{other.table.name!r} is {other.dtype}).",
                "Create one module for each dtype.",
            )
    return sources


def _source(name: str, given: TableInput) -> TableSource:
    if "." in name or not name:
        raise UsageError(
            f"tables: invalid name {name!r}.", "Use names without dots, as state_dict needs."
        )
    if isinstance(given, tuple):
        return TableSource(EmbeddingTable(name, *given), None, torch.float32)
    values = given.weight.detach() if isinstance(given, nn.Module) else given.detach()
    if values.dtype not in ELEMENTS or values.dim() != 2:
        raise UsageError(
            f"tables: {name!r} has {values.dim()} dimensions of {values.dtype}, expected 2.",
            "Pass rows of float32, bfloat16, float16, or the result of quantize_rows().",
        )
    columns = values.shape[1] - (_TAIL if values.dtype is torch.uint8 else 0)
    return TableSource(EmbeddingTable(name, values.shape[0], columns), values, values.dtype)


def allocate_shard(source: TableSource, shard: TableShard) -> Tensor:
    """Return the elements of a shard: of the given values, or initialized like nn.EmbeddingBag.

    Random values do not depend on the sharding.
    """
    (first, last), (left, right) = shard.rows, shard.columns
    if source.dtype is torch.uint8:
        if shard.dim != source.table.dim or source.values is None:
            raise UsageError(
                f"sharding: the rows of quantized table {source.table.name!r} cannot be split.",
                "Pass its values, and shard it table-wise or row-wise.",
            )
        right += _TAIL
    memory = large_pages((last - first, right - left), source.dtype)
    if source.values is not None:
        memory.copy_(source.values[first:last, left:right])
    else:
        _draw(memory, source.table, shard)
    return memory


def _draw(memory: Tensor, table: EmbeddingTable, shard: TableShard) -> None:
    """Fill with standard normal values, block by block of rows, each from its own seed."""
    (first, last), (left, right) = shard.rows, shard.columns
    block = 4096
    seed = (torch.initial_seed() ^ zlib.crc32(table.name.encode()) << 32) % (1 << 62)
    for start in range(first // block * block, last, block):
        drawn = torch.Generator().manual_seed(seed + start)
        rows = torch.randn(min(block, table.rows - start), table.dim, generator=drawn)
        low, high = max(first, start), min(last, start + block)
        memory[low - first : high - first] = rows[low - start : high - start, left:right]


def large_pages(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return zeros in huge pages, if possible: random rows then miss the TLB less often."""
    nbytes = shape[0] * shape[1] * dtype.itemsize
    if nbytes < _LARGE_PAGE:
        return torch.zeros(shape, dtype=dtype)
    # Private: shared memory has huge pages only if an administrator enables them.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=shape[0] * shape[1]).view(shape)


def quantize_rows(table: Tensor) -> Tensor:
    """Quantize every row to bytes between its smallest and its largest value.

    The scale and the bias follow the bytes of a row as float32, the layout of
    ``torch.ops.quantized.embedding_bag_byte_prepack``.
    """
    values = table.detach().float()
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    scale = ((high - low) / 255).clamp_min(1e-12)
    bytes_ = ((values - low) / scale).round().clamp(0, 255).to(torch.uint8)
    tail = torch.cat([scale, low], 1).contiguous().view(torch.uint8)
    return torch.cat([bytes_, tail], 1)
