"""What is known of a library's collectives on a device: fitted curves, their source and errors.

The files under ``catalogue/libraries`` are written by ``benchmarks/fit_nccl.py`` from measured
tables, or say which device's curves stand in for one that nobody measured. What the curves mean
is written in ``weft.cost.nccl``. Those under ``catalogue/algorithms`` hold the numbers of a
library's algorithms between nodes, which ``weft.cost.nccl_algorithms`` reads.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec

from weft.errors import PlatformError
from weft.hardware.curves import AlgorithmFit, Curve, Errors, Fit, Library, version_key
from weft.hardware.files import CATALOGUE, read_toml

__all__ = [
    "AlgorithmFit",
    "Curve",
    "Errors",
    "Fit",
    "Library",
    "algorithm_fit",
    "library",
    "library_devices",
    "version_key",
]

FOLDER = CATALOGUE / "libraries"
ALGORITHMS = CATALOGUE / "algorithms"


@dataclass(frozen=True, slots=True)
class StandIn:
    """A device whose library nobody measured, and the device whose curves are taken for it."""

    name: str
    device: str
    like: str
    source: str


def library_names() -> tuple[str, ...]:
    """List the libraries that are known on some device."""
    return tuple(sorted({path.stem.split("-")[0] for path in FOLDER.glob("*.toml")}))


def library_devices(name: str) -> tuple[str, ...]:
    """List the devices on which the library is known."""
    return tuple(sorted(path.stem.split("-", 1)[1] for path in FOLDER.glob(f"{name}-*.toml")))


@lru_cache
def library(name: str, device: str) -> Library:
    """Read what is known of a library on a device."""
    devices = library_devices(name)
    if device not in devices:
        raise PlatformError(
            f"{name} was not measured on {device}, nor on a device like it",
            f"Known on {', '.join(devices)}. Or use weft's own algorithms: --algorithm all.",
        )
    table = read_toml(FOLDER / f"{name}-{device}.toml")
    if "like" not in table:
        return msgspec.convert(table, Library)
    stand_in = msgspec.convert(table, StandIn)
    like = library(name, stand_in.like)
    return replace(like, device=device, basis="inherited", source=stand_in.source)


@lru_cache
def algorithm_fit(name: str) -> AlgorithmFit | None:
    """Read what a library's algorithms take between nodes; None if no log of it was fitted."""
    path = ALGORITHMS / f"{name}.toml"
    return msgspec.convert(read_toml(path), AlgorithmFit) if path.is_file() else None
