"""Steps of data-parallel training, small enough that their communication is felt."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.distributed import get_rank
from torch.nn.parallel import DistributedDataParallel

_WIDTH = 64
_CHECKED = 5  # steps


class Training:
    """A model of two layers with that many bytes of ``gradients``, trained by DDP.

    Weights and data are drawn from seeds, so every backend has the same ones and its losses
    can be compared; each rank has data of its own. ``alone`` leaves the gradients on the rank.
    """

    def __init__(self, gradients: int, batch: int, *, alone: bool) -> None:
        # A model that has learnt its data would end in numbers that a core is slow with.
        torch.set_flush_denormal(True)
        torch.manual_seed(0)
        hidden = max(1, gradients // (4 * 2 * _WIDTH))
        first, last = nn.Linear(_WIDTH, hidden, bias=False), nn.Linear(hidden, _WIDTH, bias=False)
        plain = nn.Sequential(first, nn.ReLU(), last)
        self._weights = [parameter.detach().clone() for parameter in plain.parameters()]
        self._model = DistributedDataParallel(plain)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-3)
        generator = torch.Generator().manual_seed(1 + get_rank())
        self._x = torch.randn(batch, _WIDTH, generator=generator)
        self._wanted = torch.randn(batch, _WIDTH, generator=generator)
        self._sync = self._model.no_sync if alone else nullcontext

    def act(self) -> torch.Tensor:
        """Train one step."""
        with self._sync():
            loss: torch.Tensor = (self._model(self._x) - self._wanted).square().mean()
            self._optimizer.zero_grad(set_to_none=False)
            loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def answer(self) -> list[float]:
        """Return the losses of the first steps, from the weights of the beginning."""
        with torch.no_grad():
            for parameter, first in zip(self._model.parameters(), self._weights, strict=True):
                parameter.copy_(first)
        return [float(self.act()) for _ in range(_CHECKED)]

    def free(self) -> None:
        """Leave its memory to Python."""
