"""The versions of the software that carries out collectives on GPUs, and what they hold by default.

A platform says what the hardware can do; a ``SoftwareStack`` says what the installed software can
make it do. Versions are detected on a machine with GPUs (``weft.gpu.detected_stack``), given
(``--stack nccl=2.31,torch=2.13``), or assumed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from weft.errors import UnknownNameError, UsageError, nearest
from weft.hardware.files import tomllib

if TYPE_CHECKING:
    from weft.hardware.device import Device

# cuda is the newest CUDA version that the driver serves (nvidia-smi prints it).
COMPONENTS = ("torch", "nccl", "cuda", "rocm", "mori")
_LIBRARY_UNITS = Path(__file__).parent / "catalogue" / "library_units.toml"
_MOST_DIGITS = 9  # of one part of a version
# What a plan assumes where no versions are given: the torch whose names were checked, and libraries
# that were current when it was released. Their collectives are kernels, as predictions assume.
_ASSUMED = {
    "NVIDIA": {"torch": "2.13", "nccl": "2.29", "cuda": "13.0"},
    "AMD": {"torch": "2.13", "rocm": "7.2"},
}

Version = tuple[int, ...]


def version_of(text: str) -> Version:
    """Parse ``2.28.9`` (or ``2.13.0+cu130``, ``2.31rc1``) into numbers that compare: 2 is 2.0."""
    return _split(text)[0]


def _split(text: str) -> tuple[Version, str]:
    """Return the numbers of a version without zeros at their end, and what follows them."""
    found = re.match(r"v?([0-9]+(?:\.[0-9]+)*)(.*)", text.strip())
    parts = found[1].split(".") if found else []
    if not found or max(map(len, parts)) > _MOST_DIGITS:
        raise UsageError(
            f"--stack: {text[:40]!r} is not a version", "Use numbers, such as nccl=2.28.9."
        )
    numbers = [int(part) for part in parts]
    while numbers and numbers[-1] == 0:
        del numbers[-1]
    return tuple(numbers), found[2]


@dataclass(frozen=True, slots=True)
class SoftwareStack:
    """Versions by component; one that is not named is not installed. ``basis`` says how they came.

    ``basis`` is ``given``, ``detected`` or ``assumed``.
    """

    versions: Mapping[str, str] = field(default_factory=dict, hash=False)
    basis: str = "given"

    def __post_init__(self) -> None:
        for name, version in self.versions.items():
            if name not in COMPONENTS:
                raise UnknownNameError(
                    f"--stack: unknown component {name!r}", nearest(name, COMPONENTS)
                )
            version_of(version)

    def __str__(self) -> str:
        return ", ".join(f"{name} {version}" for name, version in self.versions.items()) or "none"

    def has(self, name: str, at_least: str) -> bool:
        """Return whether a component is installed in at least a version."""
        mine = self.versions.get(name)
        return mine is not None and version_of(mine) >= version_of(at_least)

    def missing(self, needs: Mapping[str, str]) -> str:
        """Return what is missing of the needed versions, "" if nothing is."""
        told = []
        for name, version in needs.items():
            if not self.has(name, version):
                mine = self.versions.get(name)
                told.append(f"{name} >= {version} ({f'got {mine}' if mine else 'not installed'})")
        return " and ".join(told)

    def differences(self, other: SoftwareStack) -> str:
        """Return the components whose versions differ, "" if none does."""
        names = [n for n in COMPONENTS if n in self.versions or n in other.versions]
        found = [(n, self.versions.get(n, ""), other.versions.get(n, "")) for n in names]
        return ", ".join(
            f"{name} {mine or 'none'} and {theirs or 'none'}"
            for name, mine, theirs in found
            if not (mine and theirs) or _split(mine) != _split(theirs)
        )


def parse_stack(text: str) -> SoftwareStack:
    """Read versions as in ``nccl=2.31,torch=2.13``."""
    found = {}
    for word in filter(None, (each.strip() for each in text.split(","))):
        name, equals, version = (part.strip() for part in word.partition("="))
        if not equals or not version:
            raise UsageError(
                f"--stack: cannot parse {word!r}", "Use name=version, such as nccl=2.31,torch=2.13."
            )
        found[name] = version
    return SoftwareStack(found)


def assumed_stack(vendor: str) -> SoftwareStack:
    """Return the versions that are assumed for a vendor's devices."""
    return SoftwareStack(_ASSUMED.get(vendor, {"torch": "2.13"}), basis="assumed")


def completed_stack(given: SoftwareStack, vendor: str) -> SoftwareStack:
    """Return the given versions, with assumed ones for the components that are not named."""
    assumed = assumed_stack(vendor)
    if not given.versions:
        return assumed
    return SoftwareStack({**assumed.versions, **given.versions}, basis=given.basis)


@dataclass(frozen=True, slots=True)
class LibraryUnits:
    """The units that a library's own choice for a collective holds, from a version on.

    None leaves it to the device's catalogue entry. ``devices`` is empty for all of a vendor.
    """

    vendor: str
    needs: Mapping[str, str] = field(hash=False)
    collectives: tuple[str, ...]
    units: int
    source: str
    devices: tuple[str, ...] = ()
    at_least: int = 0  # bytes of the collective
    at_most: int = 0  # 0: any


@cache
def _rows() -> tuple[LibraryUnits, ...]:
    table = tomllib.loads(_LIBRARY_UNITS.read_text())
    return msgspec.convert(table["units"], tuple[LibraryUnits, ...])


def library_units(
    stack: SoftwareStack, device: Device, collective: str, nbytes: int
) -> LibraryUnits | None:
    """Return what the library holds by default in this version, None if the catalogue says it."""
    for row in _rows():
        fits = row.vendor == device.vendor and collective in row.collectives
        fits = fits and (not row.devices or device.name in row.devices)
        fits = fits and nbytes >= row.at_least and (not row.at_most or nbytes <= row.at_most)
        if fits and not stack.missing(row.needs):
            return row
    return None
