"""Seconds and rates: what one command costs on one resource."""

from weft.cost.gemm import Grid, gemm_grid, is_gemm
from weft.cost.kernel import KernelFlow, kernel_flow

__all__ = ["Grid", "KernelFlow", "gemm_grid", "is_gemm", "kernel_flow"]
