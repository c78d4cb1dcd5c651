"""A library's collective as an algorithm: ``nccl``, ``nccl-2.27.3``, ``nccl+int8``."""

import re
from dataclasses import dataclass

from weft.collectives.opaque import opaque
from weft.cost.nccl import LibraryPrice, library_price, own_seconds
from weft.errors import UsageError
from weft.hardware import Platform
from weft.hardware.libraries import library_names
from weft.schedule import Schedule

_SPEC = re.compile(r"([a-z]+)(?:-(\d+(?:\.\d+)*(?:rc\d+|\.post\d+)?))?(?:\+([a-z0-9]+))?")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int8")


@dataclass(frozen=True, slots=True)
class LibraryAlgorithm:
    """A library, its version (default: the newest measured one), and a dtype."""

    name: str
    version: str | None = None
    dtype: str = "float16"

    def price(self, kind: str, nbytes: int, platform: Platform) -> LibraryPrice:
        """Return the duration of one collective, with notes."""
        return library_price(
            platform, kind, nbytes, name=self.name, version=self.version, dtype=self.dtype
        )

    def schedule(self, kind: str, nbytes: int, platform: Platform) -> Schedule:
        """Build it as a schedule of one opaque kernel per rank."""
        seconds = own_seconds(platform, self.price(kind, nbytes, platform))
        return opaque(self.name, kind, platform.num_ranks, nbytes, seconds=seconds)


def library_algorithm(algorithm: str) -> LibraryAlgorithm | None:
    """Parse the name of an algorithm, if it is a library's."""
    match = _SPEC.fullmatch(algorithm)
    if match is None or match[1] not in library_names():
        return None
    dtype = match[3] or "float16"
    if dtype not in DTYPES:
        raise UsageError(
            f"{match[1]}: no measurements for dtype {dtype!r}", f"Use one of {', '.join(DTYPES)}."
        )
    return LibraryAlgorithm(match[1], match[2], dtype)
