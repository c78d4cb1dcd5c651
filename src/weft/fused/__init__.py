"""Operators that overlap computation and communication: functions that return a Schedule.

``embedding_all_to_all`` runs on CPU ranks; ``operators`` describe GPU kernels, for pricing.
"""

from weft.fused.embedding_all_to_all import EmbeddingBatch, embedding_all_to_all, embedding_backward
from weft.fused.fused_dlrm import Embedding, FusedDlrm, dlrm_step
from weft.fused.operators import (
    apart_all_reduce,
    apart_all_to_all,
    fed_by_host,
    fused_all_reduce,
    fused_all_to_all,
)
from weft.fused.sliced import Sliced
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
    "Embedding",
    "EmbeddingBatch",
    "EmbeddingTable",
    "FusedDlrm",
    "Placement",
    "Sharding",
    "Sliced",
    "TableShard",
    "apart_all_reduce",
    "apart_all_to_all",
    "column_wise",
    "dlrm_step",
    "embedding_all_to_all",
    "embedding_backward",
    "fed_by_host",
    "fused_all_reduce",
    "fused_all_to_all",
    "row_wise",
    "shard",
    "table_wise",
]
