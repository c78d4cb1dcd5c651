"""Kernels of a device: cost models fitted to measured tables, with their source and errors.

The files under ``catalogue/kernels`` are written by ``validation/fit_kernels.py`` from measured
tables. A device that was not measured states which one it is ``like``. ``any.toml`` holds the
coefficients that were fitted to all devices at once, which serve a device with a datasheet only.
What the coefficients mean is written in ``weft.cost``.
"""

import base64
import zlib
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from weft.hardware.files import CATALOGUE, read_toml
from weft.hardware.measured import Correction, KernelFit

FOLDER = CATALOGUE / "kernels"
ANY = "any"
SMALLEST_STEP = 0.005  # finer ones cost more text than they save of errors

Floats = NDArray[np.float64]


@lru_cache
def grid_axes(name: str) -> dict[str, Floats]:
    """Return the knots of a grid along each of its columns, as powers of two."""
    axes = read_toml(FOLDER / "grids.toml")[name]
    return {key: np.log2(np.array(knots, float)) for key, knots in axes.items()}


def correction_table(correction: Correction) -> Floats:
    """Return the values of a correction over all knots of its grid."""
    shape = [len(knots) for knots in grid_axes(correction.grid).values()]
    differences = np.frombuffer(zlib.decompress(base64.b85decode(correction.values)), np.int8)
    whole = np.cumsum(differences.reshape(shape), axis=0, dtype=np.int8)  # modulo 256
    return whole.astype(np.float64) * correction.step


def packed(table: Floats, grid: str, finest: float = SMALLEST_STEP) -> Correction:
    """Write a table of logarithms as a Correction; what is lost is half a step."""
    step = float(f"{max(np.abs(table).max() / 127, finest):.2g}")
    whole = np.clip(np.rint(table / step), -127, 127).astype(np.int8)
    differences = np.diff(whole, axis=0, prepend=np.zeros_like(whole[:1]))
    return Correction(
        grid, step, base64.b85encode(zlib.compress(differences.tobytes(), 9)).decode()
    )


@dataclass(frozen=True, slots=True)
class DeviceFits:
    """Everything that was fitted on one device."""

    device: str
    fits: tuple[KernelFit, ...] = ()


def fitted_devices() -> tuple[str, ...]:
    """List the devices with fits of their own."""
    return tuple(
        sorted(path.stem for path in FOLDER.glob("*.toml") if path.stem not in (ANY, "grids"))
    )


@lru_cache
def device_fits(device: str) -> DeviceFits:
    """Read the kernel fits of a device; empty if it was not measured."""
    path = FOLDER / f"{device}.toml"
    if not path.is_file():
        return DeviceFits(device)
    return msgspec.convert(read_toml(path), DeviceFits)


def find_fit(device: str, family: str, dtype: str, implementation: str = "") -> KernelFit | None:
    """Return the fit of a family, dtype and library on a device, if there is one."""
    key = family, dtype, implementation
    fits = device_fits(device).fits
    return next((f for f in fits if (f.family, f.dtype, f.implementation) == key), None)


def implementations(device: str, family: str) -> tuple[str, ...]:
    """List the libraries whose kernels of a family were fitted on a device."""
    fits = device_fits(device).fits
    return tuple(dict.fromkeys(f.implementation for f in fits if f.family == family))
