"""Random pairs, to ask how often a rule is right and how fast pairs are priced."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from weft.c3.pair_pricing import Pricer
from weft.c3.scenarios import Gemm, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from weft.hardware import Platform

TOKENS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
WIDTHS = (2048, 4096, 5120, 8192, 14336, 16384, 28672, 53248, 57344, 106496)
_STEP = 1 << 12


def random_pairs(
    count: int, platform: Platform, collectives: Sequence[str], *, seed: int = 0
) -> Iterator[Scenario]:
    """Yield layers of transformers with collectives a quarter to four times as long as the GEMM."""
    draw = random.Random(seed)  # noqa: S311 - scenarios are no secrets
    pricer = Pricer(platform)
    for number in range(count):
        gemm = Gemm(draw.choice(TOKENS), draw.choice(WIDTHS), draw.choice(WIDTHS))
        kind = draw.choice(collectives)
        probe = Scenario("", gemm, kind, 1 << 30)
        seconds = pricer.compute(gemm) * 2 ** draw.uniform(-2, 2)
        nbytes = seconds / pricer.comm(probe) * probe.nbytes
        step = _STEP * platform.num_ranks
        yield Scenario(f"random-{number}", gemm, kind, max(1, round(nbytes / step)) * step)
