"""weft for PyTorch: ``import weft.torch`` registers the backend ``weft``.

import torch.distributed as dist
import weft.torch

dist.init_process_group("weft")
"""

from weft.torch.backend import WeftProcessGroup, register
from weft.torch.compression import compress
from weft.torch.heap import use_heap
from weft.torch.memory import empty, free, monitored_barrier, paths, set_engines, world_of

__all__ = [
    "WeftProcessGroup",
    "compress",
    "empty",
    "free",
    "monitored_barrier",
    "paths",
    "set_engines",
    "use_heap",
    "world_of",
]

register()
