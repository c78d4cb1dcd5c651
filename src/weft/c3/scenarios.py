"""The pairs of a GEMM and a collective that weft is judged by: thirty, written down beforehand.

Five GEMMs, two collectives, three sizes. The list stood here before any parameter was fitted
and does not depend on the model: sizes come from plain arithmetic on published rates. A pair is
judged by the share of the possible gain that is realised, and by which of its sides is longer.
"""

from dataclasses import dataclass

from weft.errors import UsageError
from weft.units import MIB, digits

# static: the grid that a library chooses, a workgroup for each tile, in waves. stealing: persistent
# workgroups that take the next tile from a counter. lists: persistent workgroups, one a unit, each
# with a list of tiles.
TILE_SCHEDULES = {"static": "gemm", "stealing": "gemm-stealing", "lists": "gemm-lists"}


@dataclass(frozen=True, slots=True)
class Gemm:
    """C = A x B of ``m`` x ``n``, summed over ``k``: m tokens pass a weight of k x n.

    ``tiles`` says which workgroup computes which tile: see ``TILE_SCHEDULES``.
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    tiles: str = "static"

    @property
    def family(self) -> str:
        """The kernel's family in the cost models."""
        return TILE_SCHEDULES[self.tiles]

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"


def parse_gemm(text: str, dtype: str = "bf16", tiles: str = "static") -> Gemm:
    """Read m x n x k.

    >>> parse_gemm("128x57344x8192").n
    57344
    """
    sides = text.lower().split("x")
    if len(sides) != 3 or not all(digits(side) for side in sides):
        raise UsageError(
            f"cannot read {text!r} as a GEMM", "Write rows x columns x depth, as 4096x57344x8192."
        )
    if tiles not in TILE_SCHEDULES:
        raise UsageError(
            f"--tiles: unknown schedule (got {tiles!r})", f"Use {', '.join(TILE_SCHEDULES)}."
        )
    m, n, k = map(int, sides)
    return Gemm(m, n, k, dtype, tiles)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A GEMM, and a collective of ``nbytes`` (counted as nccl-tests does) overlapped with it."""

    name: str
    gemm: Gemm
    collective: str
    nbytes: int


# Projections up and gate of LLaMA-70B (8192 x 57344) and LLaMA-405B (16384 x 106496): the layers
# that the published study took its GEMMs and its weights from (arXiv 2412.14335). Thousands of
# tokens make them compute bound, 128 memory bound.
GEMMS = {
    "cb1": Gemm(4096, 57344, 8192),
    "cb2": Gemm(2048, 106496, 16384),
    "cb3": Gemm(4096, 106496, 16384),
    "mb1": Gemm(128, 57344, 8192),
    "mb2": Gemm(128, 106496, 16384),
}
COLLECTIVES = {"ag": "all_gather", "a2a": "all_to_all"}

# MiB for which the collective takes a half, one and two times as long as the GEMM: the GEMM at
# 700 TFLOP/s or 4180 GB/s, seven eighths of the bytes over 336 GB/s, rounded to 8 MiB.
SIZES = {
    "cb1": (1008, 2016, 4024),
    "cb2": (1872, 3736, 7480),
    "cb3": (3736, 7480, 14952),
    "mb1": (40, 80, 168),
    "mb2": (152, 312, 616),
}
RATIOS = (0.5, 1.0, 2.0)

SCENARIOS = tuple(
    Scenario(f"{gemm}-{short}-{ratio:g}", GEMMS[gemm], collective, size * MIB)
    for gemm, sizes in SIZES.items()
    for short, collective in COLLECTIVES.items()
    for ratio, size in zip(RATIOS, sizes, strict=True)
)


_EQUAL = 1.15  # times as long, up to which two sides count as equally long


def percent_of_ideal(serial: float, ideal: float, seconds: float) -> float:
    """Return the share of the possible gain that is realised (arXiv 2412.14335), in percent.

    >>> percent_of_ideal(3.0, 2.0, 2.0), percent_of_ideal(3.0, 2.0, 3.0)
    (100.0, 0.0)
    """
    gain = serial / ideal - 1 if ideal > 0 else 0.0
    if not (gain > 0 and seconds > 0):
        raise UsageError(
            f"no gain to compare with: both take {serial:g} s one after the other and {ideal:g} s "
            f"at best, together {seconds:g} s",
            "Use a GEMM and a collective that take comparable time.",
        )
    return 100 * (serial / seconds - 1) / gain


def class_of(compute: float, comm: float) -> str:
    """Return which of the two is longer: G-long, C-long, or GC-equal."""
    if compute > _EQUAL * comm:
        return "G-long"
    return "C-long" if comm > _EQUAL * compute else "GC-equal"
