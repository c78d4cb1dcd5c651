"""Seconds and rates: what one command costs on one resource."""

from weft.cost.gemm import Grid, gemm_grid, is_gemm
from weft.cost.kernel import KernelFlow, kernel_flow
from weft.cost.price import KernelPrices, Price, price, price_columns

__all__ = [
    "Grid",
    "KernelFlow",
    "KernelPrices",
    "Price",
    "gemm_grid",
    "is_gemm",
    "kernel_flow",
    "price",
    "price_columns",
]
