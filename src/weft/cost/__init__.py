"""Seconds and rates: what one command costs on one resource."""

from weft.cost.kernel import KernelFlow, kernel_flow

__all__ = ["KernelFlow", "kernel_flow"]
