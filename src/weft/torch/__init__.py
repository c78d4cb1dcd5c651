"""weft for PyTorch: ``import weft.torch`` registers the backend ``weft``.

import torch.distributed as dist
import weft.torch

dist.init_process_group("weft")
"""

from weft.torch.backend import WeftProcessGroup, register
from weft.torch.memory import empty, free, paths, world_of

__all__ = ["WeftProcessGroup", "empty", "free", "paths", "world_of"]

register()
