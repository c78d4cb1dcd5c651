"""What becomes of a row's gradient in the backward pass of an embedding."""

from dataclasses import dataclass


@dataclass
class SGD:
    """Subtract ``lr`` times the gradient. ``lr`` may be changed between steps."""

    lr: float


@dataclass
class RowwiseAdagrad:
    """Adagrad with one sum a row: the mean of its gradient's squares. ``lr`` may be changed."""

    lr: float
    eps: float = 1e-8


RowOptimizer = SGD | RowwiseAdagrad
