"""Optimizers of rows, and buffers for gradients that the native core fills for autograd."""

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from weft._core import RowUpdate


@dataclass
class SGD:
    """Plain SGD. ``lr`` may be changed between steps."""

    lr: float


@dataclass
class RowwiseAdagrad:
    """Adagrad with one sum per row: of the mean of the squared gradient. ``lr`` may be changed."""

    lr: float
    eps: float = 1e-8


RowOptimizer = SGD | RowwiseAdagrad
# Of the native core: update rule, rate, epsilon, and addresses of state, rows, sums and weights.
GradientTarget = tuple[int, float, float, int, int, int, int]


class GradientRequest(NamedTuple):
    """What to compute: an optimizer step, or sparse or dense gradients; and those of weights."""

    rule: RowOptimizer | None
    sparse: bool
    weights: Tensor | None


@dataclass
class RowGradients:
    """Gradients of one backward pass, written while it runs."""

    sparse: bool
    rows: list[Tensor] = field(default_factory=list)
    sums: list[Tensor] = field(default_factory=list)
    parameters: list[Tensor] = field(default_factory=list)
    weights: Tensor | None = None
    num_parameters: int = 0

    def tensors(self) -> list[Tensor | None]:
        """Return the gradient of the weights, then that of each parameter."""
        if not self.rows:
            return [self.weights, *[None] * self.num_parameters]
        made = zip(self.parameters, self.rows, self.sums, strict=True)
        return [self.weights, *(self._gradient(*each) for each in made)]

    def _gradient(self, parameter: Tensor, rows: Tensor, sums: Tensor) -> Tensor:
        sums = sums.to(parameter.dtype)
        if self.sparse:
            return torch.sparse_coo_tensor(
                rows.unsqueeze(0), sums, parameter.shape, is_coalesced=True, check_invariants=False
            )
        return torch.zeros_like(parameter).index_copy_(0, rows, sums)


def allocate_gradients(
    asked: GradientRequest, parameters: list[Tensor], counts: list[int], states: list[Tensor | None]
) -> tuple[RowGradients, list[GradientTarget]]:
    """Allocate the gradients of some rows of each table; return them and their addresses."""
    found = RowGradients(asked.sparse, num_parameters=len(parameters))
    if asked.weights is not None:
        found.weights = torch.zeros_like(asked.weights)
    at = 0 if found.weights is None else found.weights.data_ptr()
    if asked.rule is not None:
        rule = asked.rule
        update, epsilon = RowUpdate.SGD, 0.0
        if isinstance(rule, RowwiseAdagrad):
            update, epsilon = RowUpdate.ROWWISE_ADAGRAD, rule.eps
        addresses = [0 if state is None else state.data_ptr() for state in states]
        return found, [(update, rule.lr, epsilon, state, 0, 0, at) for state in addresses]
    results: list[GradientTarget] = []
    for parameter, count in zip(parameters, counts, strict=True):
        rows = torch.empty(count, dtype=torch.int64)
        sums = torch.empty(count, parameter.shape[1])
        found.rows.append(rows)
        found.sums.append(sums)
        found.parameters.append(parameter)
        results.append((-1, 0.0, 0.0, 0, rows.data_ptr(), sums.data_ptr(), at))
    return found, results
