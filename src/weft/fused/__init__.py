"""Operators that compute and communicate at once: functions that return a Schedule."""

from weft.fused.embedding_all_to_all import Batch, embedding_all_to_all, embedding_backward
from weft.fused.sharding import (
    Placement,
    Shard,
    Sharding,
    Table,
    column_wise,
    row_wise,
    shard,
    table_wise,
)

__all__ = [
    "Batch",
    "Placement",
    "Shard",
    "Sharding",
    "Table",
    "column_wise",
    "embedding_all_to_all",
    "embedding_backward",
    "row_wise",
    "shard",
    "table_wise",
]
