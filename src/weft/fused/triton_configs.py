"""Launch configurations of the fused kernels: tiles, warps and stages to choose among."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

_TILE = 4096  # elements of rows that a program has under way at once
_MOST_BAGS = 64  # of an item


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """How a kernel is launched: warps of a program, and programs of a compute unit."""

    num_warps: int = 4
    programs_per_unit: int = 2

    def programs(self, device: torch.device, interpreted: int = 2) -> int:
        """Return how many programs run at once, all of them resident; a few if interpreted."""
        if device.type == "cpu":
            return interpreted
        # No more programs than fit on the device at once: residents spin on flags, so one that is
        # scheduled only after they end could never raise what they wait for.
        units: int = torch.cuda.get_device_properties(device).multi_processor_count
        return units * self.programs_per_unit

    def options(self) -> dict[str, Any]:
        """Return the options of a launch; sums are not fused, as on the CPU."""
        return {"num_warps": self.num_warps, "enable_fp_fusion": False}


@dataclass(frozen=True, slots=True)
class EmbeddingConfig(LaunchConfig):
    """Samples of an item, and rows of each of its bags that are loaded together."""

    bags: int = 16
    unroll: int = 2


@dataclass(frozen=True, slots=True)
class GemvConfig(LaunchConfig):
    """The tile of the matrix that a program loads at once."""

    block_rows: int = 16
    block_columns: int = 256


@dataclass(frozen=True, slots=True)
class GemmConfig(LaunchConfig):
    """The tile of a product; a band of ``block_m`` rows is what tiles are counted in."""

    block_m: int = 128
    block_n: int = 128
    block_k: int = 32


def embedding_configs(dim: int) -> list[EmbeddingConfig]:
    """Return the configurations to try for tables of up to ``dim`` columns, the usual one first."""
    usual = max(1, min(_MOST_BAGS, _TILE // triton.next_power_of_2(dim)))
    found = [EmbeddingConfig(bags=usual, unroll=2)]
    found += [EmbeddingConfig(bags=max(usual // 2, 1), unroll=unroll) for unroll in (2, 4)]
    found += [
        EmbeddingConfig(bags=usual, unroll=1, programs_per_unit=4),
        EmbeddingConfig(bags=usual, unroll=2, num_warps=8),
    ]
    return found


GEMV_CONFIGS = (
    GemvConfig(),
    GemvConfig(block_rows=8, block_columns=512),
    GemvConfig(block_rows=4, block_columns=1024),
    GemvConfig(block_rows=16, block_columns=256, programs_per_unit=4),
)
GEMM_CONFIGS = (
    GemmConfig(programs_per_unit=1, num_warps=8),
    GemmConfig(block_n=256, programs_per_unit=1, num_warps=8),
    GemmConfig(block_n=64, programs_per_unit=2),
)
