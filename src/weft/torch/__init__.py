"""weft for PyTorch: ``import weft.torch`` registers the backend ``weft``.

import torch.distributed as dist
import weft.torch

dist.init_process_group("weft")
"""

from weft.fused import column_wise, row_wise, table_wise
from weft.torch.apply.applied import Applied
from weft.torch.apply.apply_plan import apply
from weft.torch.apply.inductor_overlap import runtime_estimator, schedule_overlap
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
from weft.torch.embedding.row_gradients import SGD, RowwiseAdagrad
from weft.torch.embedding.table_storage import quantize_rows
from weft.torch.linear.expert_combine import ExpertCombine
from weft.torch.linear.parallel_linear import AllGatherLinear, GemvAllReduce, LinearReduceScatter
from weft.torch.monitoring.job_monitor import JobMonitor, monitor
from weft.torch.monitoring.overlap_report import OverlapReport, overlap_report
from weft.torch.resharding.reshard_tensor import Resharding, reshard
from weft.torch.symmetric_memory import symmetric_memory_backend
from weft.torch.weights.weight_receiver import WeightReceiver
from weft.torch.weights.weight_sender import PublishedUpdate, WeightSender

__all__ = [
    "SGD",
    "AllGatherLinear",
    "Applied",
    "EmbeddingAllToAll",
    "EmbeddingBags",
    "ExpertCombine",
    "GemvAllReduce",
    "JobMonitor",
    "LinearReduceScatter",
    "OverlapReport",
    "PlanWarning",
    "PublishedUpdate",
    "Resharding",
    "RowwiseAdagrad",
    "WeftProcessGroup",
    "WeightReceiver",
    "WeightSender",
    "apply",
    "column_wise",
    "compress",
    "empty",
    "free",
    "monitor",
    "monitored_barrier",
    "overlap_report",
    "paths",
    "quantize_rows",
    "reshard",
    "row_wise",
    "runtime_estimator",
    "schedule_overlap",
    "set_engines",
    "table_wise",
    "use_heap",
    "world_of",
]

register()
symmetric_memory_backend.register()
