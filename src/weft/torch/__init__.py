"""weft for PyTorch: ``import weft.torch`` registers the backend ``weft``.

import torch.distributed as dist
import weft.torch

dist.init_process_group("weft")
"""

from weft.fused import column_wise, row_wise, table_wise
from weft.torch.apply import Applied, apply
from weft.torch.apply_watch import PlanWarning
from weft.torch.backend import WeftProcessGroup, register
from weft.torch.compression import compress
from weft.torch.embedding import EmbeddingAllToAll
from weft.torch.embedding_bags import EmbeddingBags
from weft.torch.experts import ExpertCombine
from weft.torch.heap import use_heap
from weft.torch.linear import AllGatherLinear, GemvAllReduce, LinearReduceScatter
from weft.torch.memory import empty, free, monitored_barrier, paths, set_engines, world_of
from weft.torch.rules import SGD, RowwiseAdagrad
from weft.torch.tables import quantize_rows

__all__ = [
    "SGD",
    "AllGatherLinear",
    "Applied",
    "EmbeddingAllToAll",
    "EmbeddingBags",
    "ExpertCombine",
    "GemvAllReduce",
    "LinearReduceScatter",
    "PlanWarning",
    "RowwiseAdagrad",
    "WeftProcessGroup",
    "apply",
    "column_wise",
    "compress",
    "empty",
    "free",
    "monitored_barrier",
    "paths",
    "quantize_rows",
    "row_wise",
    "set_engines",
    "table_wise",
    "use_heap",
    "world_of",
]

register()
