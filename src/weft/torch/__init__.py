"""weft for PyTorch: ``import weft.torch`` registers the backend ``weft``.

import torch.distributed as dist
import weft.torch

dist.init_process_group("weft")
"""

from weft.fused import column_wise, row_wise, table_wise
from weft.torch.apply.apply_plan import Applied, apply
from weft.torch.apply.step_watch import PlanWarning
from weft.torch.backend.compression import compress
from weft.torch.backend.fsdp_heap import use_heap
from weft.torch.backend.group_functions import (
    empty,
    free,
    monitored_barrier,
    paths,
    set_engines,
    world_of,
)
from weft.torch.backend.process_group import WeftProcessGroup, register
from weft.torch.embedding.embedding_bags import EmbeddingBags
from weft.torch.embedding.embedding_module import EmbeddingAllToAll
from weft.torch.embedding.row_optimizers import SGD, RowwiseAdagrad
from weft.torch.embedding.table_storage import quantize_rows
from weft.torch.linear.expert_combine import ExpertCombine
from weft.torch.linear.parallel_linear import AllGatherLinear, GemvAllReduce, LinearReduceScatter

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
