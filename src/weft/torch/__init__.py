"""weft for PyTorch: ``import weft.torch`` registers the backend ``weft``.

import torch.distributed as dist
import weft.torch

dist.init_process_group("weft")
"""

from weft.torch.backend import WeftProcessGroup, register
from weft.torch.embedding import EmbeddingAllToAll
from weft.torch.heap import use_heap
from weft.torch.memory import empty, free, monitored_barrier, paths, set_engines, world_of
from weft.torch.rules import SGD, RowwiseAdagrad
from weft.torch.tables import quantize_rows

__all__ = [
    "SGD",
    "EmbeddingAllToAll",
    "RowwiseAdagrad",
    "WeftProcessGroup",
    "empty",
    "free",
    "monitored_barrier",
    "paths",
    "quantize_rows",
    "set_engines",
    "use_heap",
    "world_of",
]

register()
