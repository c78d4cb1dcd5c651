"""A library's collective as an algorithm: ``nccl``, ``nccl-2.27.3``, ``nccl+int8``."""

import re
from dataclasses import dataclass

from weft.collectives.opaque import opaque
from weft.cost.nccl import LibraryPrice, library_price, own_seconds
from weft.errors import UsageError
from weft.hardware import Platform
from weft.hardware.libraries import library_names
from weft.schedule import Schedule

_SPEC = re.compile(r"([a-z]+)(?:-([0-9]+(?:\.[0-9]+)*))?(?:\+(\w+))?")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int8")


@dataclass(frozen=True, slots=True)
class LibraryAlgorithm:
    """Which library, which of its versions (the newest measured one by default), which dtype."""

    name: str
    version: str | None = None
    dtype: str = "float16"

    def price(self, kind: str, nbytes: int, platform: Platform) -> LibraryPrice:
        """Give the seconds of one collective, with what to keep in mind about them."""
        return library_price(
            platform, kind, nbytes, name=self.name, version=self.version, dtype=self.dtype
        )

    def schedule(self, kind: str, nbytes: int, platform: Platform) -> Schedule:
        """Give it as a schedule of one opaque kernel a rank."""
        seconds = own_seconds(platform, self.price(kind, nbytes, platform))
        return opaque(self.name, kind, platform.num_ranks, nbytes, seconds=seconds)


def library_algorithm(algorithm: str) -> LibraryAlgorithm | None:
    """Read the name of an algorithm, if it is a library's."""
    match = _SPEC.fullmatch(algorithm)
    if match is None or match[1] not in library_names():
        return None
    dtype = match[3] or "float16"
    if dtype not in DTYPES:
        raise UsageError(
            f"{match[1]} was not measured with dtype {dtype!r}", f"Use one of {', '.join(DTYPES)}."
        )
    return LibraryAlgorithm(match[1], match[2], dtype)
