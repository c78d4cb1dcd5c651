"""Steps of training with a sharded optimizer, as a rank of the benchmark does them."""

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import weft.torch
from benchmarks.torch_weights import TextModel, backward, loss_of, text_of_library

_BATCH, _RATE = 1, 1e-3


@dataclass
class ZeroTraining:
    """A transformer under DDP whose optimizer's state is sharded: owners broadcast weights.

    Gradients are averaged as float16, as is usual on slow links. ``codec`` is that of the
    broadcasts; owners keep their weights exact, so small updates are not rounded away.
    """

    codec: str
    width: int
    layers: int

    def __post_init__(self) -> None:
        torch.manual_seed(0)  # also on every rank: the model is the same
        self._compress("none")
        self._model = DistributedDataParallel(TextModel(self.width, self.layers))
        self._model.register_comm_hook(None, fp16_compress_hook)
        self._optimizer = ZeroRedundancyOptimizer(
            self._model.parameters(),
            optimizer_class=torch.optim.AdamW,
            parameters_as_bucket_view=True,
            lr=_RATE,
        )
        self._text = text_of_library()
        self._order = torch.Generator().manual_seed(dist.get_rank())
        self._losses: list[float] = []
        self._shared: list[float] = []
        optimizer: Any = self._optimizer
        self._share, optimizer._sync_params = optimizer._sync_params, self._timed  # noqa: SLF001
        self.free = lambda: self._compress("none")

    def _compress(self, codec: str) -> None:
        weft.torch.compress(broadcast=None if codec == "none" else codec, keep_root=True)

    def ready(self) -> None:
        """Return how weights travel."""
        self._compress(self.codec)

    def act(self) -> None:
        """Take one step."""
        starts = torch.randint(len(self._text) - 100, (_BATCH,), generator=self._order)
        self._optimizer.zero_grad()
        loss = loss_of(self._model, self._text, starts)
        backward(loss)
        self._optimizer.step()
        self._losses.append(float(loss.detach()))

    def answer(self) -> dict[str, Any]:
        """Return the losses so far and the seconds in which weights were shared."""
        return {"losses": self._losses, "shared": self._shared}

    def _timed(self) -> None:
        begin = time.perf_counter()
        self._share()
        self._shared.append(time.perf_counter() - begin)
