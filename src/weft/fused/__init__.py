"""Fused operators: a computation whose results leave for their ranks as they are made."""

from weft.fused.dlrm import Dlrm, Embedding, dlrm_step
from weft.fused.operators import (
    apart_all_reduce,
    apart_all_to_all,
    fed_by_host,
    fused_all_reduce,
    fused_all_to_all,
)
from weft.fused.sliced import Sliced

__all__ = [
    "Dlrm",
    "Embedding",
    "Sliced",
    "apart_all_reduce",
    "apart_all_to_all",
    "dlrm_step",
    "fed_by_host",
    "fused_all_reduce",
    "fused_all_to_all",
]
