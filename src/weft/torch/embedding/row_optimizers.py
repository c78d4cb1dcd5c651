"""Optimizers that update rows in the backward pass of an embedding."""

from dataclasses import dataclass


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
