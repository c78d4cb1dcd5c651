"""Operators that overlap computation and communication: functions that return a Schedule.

``embedding_all_to_all`` runs on CPU ranks; ``operators`` describe GPU kernels, for pricing.
"""

from weft.fused.embedding_all_to_all import EmbeddingBatch, embedding_all_to_all, embedding_backward
from weft.fused.operators import (
    Sliced,
    apart_all_reduce,
    apart_all_to_all,
    fused_all_reduce,
    fused_all_to_all,
)
from weft.fused.table_sharding import (
    EmbeddingTable,
    Placement,
    Sharding,
    TableShard,
    column_wise,
    row_wise,
    shard,
    table_wise,
)

__all__ = [
    "EmbeddingBatch",
    "EmbeddingTable",
    "Placement",
    "Sharding",
    "Sliced",
    "TableShard",
    "apart_all_reduce",
    "apart_all_to_all",
    "column_wise",
    "embedding_all_to_all",
    "embedding_backward",
    "fused_all_reduce",
    "fused_all_to_all",
    "row_wise",
    "shard",
    "table_wise",
]
