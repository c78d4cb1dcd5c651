"""Embedding tables as a module is given them, and the memory of the shards that a rank holds."""

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
_TAIL = 8  # bytes behind a row of a quantised table: its scale and its bias
_LARGE_PAGE = 2 << 20


class TableSource(NamedTuple):
    """A table, and the values it begins with, if any were given."""

    table: EmbeddingTable
    values: Tensor | None
    dtype: torch.dtype


def sources_of(tables: Mapping[str, TableInput] | Sequence[TableInput]) -> list[TableSource]:
    """Read what tables a user wants; all of one dtype."""
    named = tables if isinstance(tables, Mapping) else {f"t{i}": t for i, t in enumerate(tables)}
    sources = [_source(name, given) for name, given in named.items()]
    for source in sources:
        if source.dtype is not sources[0].dtype:
            first, other = sources[0], source
            raise UsageError(
                f"table {first.table.name!r} is {first.dtype}, table {other.table.name!r} is "
                f"{other.dtype}.",
                "All tables of a module have one dtype; make a module for each.",
            )
    return sources


def _source(name: str, given: TableInput) -> TableSource:
    if "." in name or not name:
        raise UsageError(f"a table cannot be called {name!r}: state_dict needs names without dots.")
    if isinstance(given, tuple):
        return TableSource(EmbeddingTable(name, *given), None, torch.float32)
    values = given.weight.detach() if isinstance(given, nn.Module) else given.detach()
    if values.dtype not in ELEMENTS or values.dim() != 2:
        raise UsageError(
            f"table {name!r} is {values.dtype} of {values.dim()} dimensions.",
            "A table has rows and columns of float32, bfloat16, float16, or of quantize_rows().",
        )
    columns = values.shape[1] - (_TAIL if values.dtype is torch.uint8 else 0)
    return TableSource(EmbeddingTable(name, values.shape[0], columns), values, values.dtype)


def allocate_shard(source: TableSource, shard: TableShard) -> Tensor:
    """Give the elements of a shard: cut from what was given, or drawn as nn.EmbeddingBag does.

    What is drawn does not depend on how tables are cut.
    """
    (first, last), (left, right) = shard.rows, shard.columns
    if source.dtype is torch.uint8:
        if shard.dim != source.table.dim or source.values is None:
            raise UsageError(
                f"table {source.table.name!r} is quantised: it must be given, and whole rows of it "
                "stay together.",
                "Cut it table-wise or row-wise.",
            )
        right += _TAIL
    memory = large_pages((last - first, right - left), source.dtype)
    if source.values is not None:
        memory.copy_(source.values[first:last, left:right])
    else:
        _draw(memory, source.table, shard)
    return memory


def _draw(memory: Tensor, table: EmbeddingTable, shard: TableShard) -> None:
    """Draw standard normal numbers, block of rows by block, each from a seed of its own."""
    (first, last), (left, right) = shard.rows, shard.columns
    block = 4096
    seed = (torch.initial_seed() ^ zlib.crc32(table.name.encode()) << 32) % (1 << 62)
    for start in range(first // block * block, last, block):
        drawn = torch.Generator().manual_seed(seed + start)
        rows = torch.randn(min(block, table.rows - start), table.dim, generator=drawn)
        low, high = max(first, start), min(last, start + block)
        memory[low - first : high - first] = rows[low - start : high - start, left:right]


def large_pages(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Give zeros in pages as large as the system has: rows that lie anywhere are found faster."""
    nbytes = shape[0] * shape[1] * dtype.itemsize
    if nbytes < _LARGE_PAGE:
        return torch.zeros(shape, dtype=dtype)
    # Private: shared memory has large pages only where an administrator says so.
    memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=shape[0] * shape[1]).view(shape)


def quantize_rows(table: Tensor) -> Tensor:
    """Round every row to bytes between its least and its largest value.

    Behind the bytes of a row stand its scale and its bias as float32, which is how
    ``torch.ops.quantized.embedding_bag_byte_prepack`` lays rows out too.
    """
    values = table.detach().float()
    low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
    scale = ((high - low) / 255).clamp_min(1e-12)
    bytes_ = ((values - low) / scale).round().clamp(0, 255).to(torch.uint8)
    tail = torch.cat([scale, low], 1).contiguous().view(torch.uint8)
    return torch.cat([bytes_, tail], 1)
