"""Steps of data-parallel training, small enough that their communication is felt."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Training:
    """A model of two layers with that many bytes of gradients, trained by DDP.

    Weights and data are drawn from seeds, so every backend has the same ones and its losses
    can be compared; each rank has data of its own.
    """

    def __init__(self, gradients: int, batch: int, width: int = 64, *, steps: int = 5) -> None:
        torch.manual_seed(0)
        hidden = max(1, gradients // (4 * 2 * width))
        plain = nn.Sequential(nn.Linear(width, hidden, bias=False), nn.ReLU())
        plain.append(nn.Linear(hidden, width, bias=False))
        self._first = [parameter.detach().clone() for parameter in plain.parameters()]
        self._model = DistributedDataParallel(plain)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-2)
        drawn = torch.Generator().manual_seed(1 + torch.distributed.get_rank())
        self._x = torch.randn(batch, width, generator=drawn)
        self._wanted = torch.randn(batch, width, generator=drawn)
        self._steps = steps

    def act(self) -> torch.Tensor:
        """Train one step."""
        loss: torch.Tensor = (self._model(self._x) - self._wanted).square().mean()
        self._optimizer.zero_grad(set_to_none=False)
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.detach()

    def answer(self) -> list[float]:
        """Give the losses of the first steps, from the weights of the beginning."""
        with torch.no_grad():
            for parameter, first in zip(self._model.parameters(), self._first, strict=True):
                parameter.copy_(first)
        return [float(self.act()) for _ in range(self._steps)]

    def free(self) -> None:
        """Leave its memory to Python."""
