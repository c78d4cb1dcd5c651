"""Operators that compute and communicate at once: functions that return a Schedule.

``embedding_all_to_all`` is run by CPU ranks; ``operators`` are what GPUs would run, for pricing.
"""

from weft.fused.dlrm import Dlrm, Embedding, dlrm_step
from weft.fused.embedding_all_to_all import Batch, embedding_all_to_all, embedding_backward
from weft.fused.operators import (
    apart_all_reduce,
    apart_all_to_all,
    fed_by_host,
    fused_all_reduce,
    fused_all_to_all,
)
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
from weft.fused.sliced import Sliced

__all__ = [
    "Batch",
    "Dlrm",
    "Embedding",
    "Placement",
    "Shard",
    "Sharding",
    "Sliced",
    "Table",
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
