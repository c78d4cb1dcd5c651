"""What is known of a library's collectives on a device: fitted curves, their source and errors.

The files under ``catalogue/libraries`` are written by ``validation/fit_nccl.py`` from measured
tables. A device that was not measured states which one it is ``like``. What the curves mean is
written in ``weft.cost.nccl``. Those under ``catalogue/algorithms`` hold the numbers of a
library's algorithms between nodes, which ``weft.cost.nccl_algorithms`` reads.
"""

from dataclasses import replace
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


def library_names() -> tuple[str, ...]:
    """List the libraries that are known on some device."""
    return tuple(sorted({path.stem.split("-")[0] for path in FOLDER.glob("*.toml")}))


def library_devices(name: str) -> tuple[str, ...]:
    """List the devices on which the library is known."""
    return tuple(sorted(path.stem.split("-", 1)[1] for path in FOLDER.glob(f"{name}-*.toml")))


@lru_cache
def library(name: str, device: str, like: str = "") -> Library:
    """Read the curves of a library on a device, or on the one that it is like."""
    devices = library_devices(name)
    if device in devices:
        return msgspec.convert(read_toml(FOLDER / f"{name}-{device}.toml"), Library)
    if like in devices:
        source = f"curves of {like} at the rates of {device}'s links: no table of {device}"
        return replace(library(name, like), device=device, basis="inherited", source=source)
    raise PlatformError(
        f"{name} was not measured on {device}, nor on a device like it",
        f"Known on {', '.join(devices)}. Or use weft's own algorithms: --algorithm all.",
    )


@lru_cache
def algorithm_fit(name: str) -> AlgorithmFit | None:
    """Read what a library's algorithms take between nodes; None if no log of it was fitted."""
    path = ALGORITHMS / f"{name}.toml"
    return msgspec.convert(read_toml(path), AlgorithmFit) if path.is_file() else None
