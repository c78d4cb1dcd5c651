"""The accuracy of a library's fitted curves, as ``weft platforms NAME`` shows it."""

from dataclasses import asdict
from typing import Any

from weft.hardware import Platform
from weft.hardware.libraries import Fit, Library, library, library_devices, library_names
from weft.report.text import Column, print_table, print_wrapped
from weft.units import format_size


def known_libraries(platform: Platform) -> list[Library]:
    """Return the libraries with prices on a platform."""
    device = platform.device
    if device is None:
        return []
    return [
        library(name, device.name, device.like)
        for name in library_names()
        if {device.name, device.like} & {*library_devices(name)}
    ]


def error_rows(known: Library) -> list[dict[str, Any]]:
    """Return a row for each fit: its error at sizes that were held back, and all the others."""
    return [
        {
            "key": ".".join((known.name, fit.version, fit.collective, fit.dtypes, _ranks(fit))),
            "value": fit.errors.held_back,
            "basis": known.basis,
            "source": known.source,
            "errors": asdict(fit.errors),
        }
        for fit in known.fits
    ]


def _ranks(fit: Fit) -> str:
    return ",".join(map(str, fit.ranks))


def print_errors(known: Library) -> None:
    """Print the errors of a library's curves."""
    sizes = f"{format_size(known.smallest)} to {format_size(known.largest)}"
    print()
    print_wrapped(f"{known.name}, {known.basis}: {known.source}; {sizes}.")
    on = "" if known.basis == "fitted" else f" on {known.node}"
    print_wrapped(
        f"Geometric means of the relative error{on}: fitted to, and each of what was left out:"
    )
    columns = [
        Column("version", known.name, right=False),
        Column("collective", "collective", right=False),
        Column("dtypes", "dtypes", right=False),
        Column("ranks", "ranks", right=False),
        Column("cells", "cells", spare=True),
        Column("numbers", "numbers", spare=True),
        Column("fit", "fitted", _percent),
        Column("held_back", "sizes", _percent),
        Column("within_20", "within 20 %", _percent),
        Column("count_left_out", "ranks", _percent),
        Column("version_left_out", "version", _percent),
    ]
    print_table(columns, [_shown(fit) for fit in known.fits])


def _shown(fit: Fit) -> dict[str, Any]:
    numbers = len(fit.first) + len(fit.step) + len(fit.in_switch)
    return asdict(fit) | asdict(fit.errors) | {"ranks": _ranks(fit), "numbers": numbers}


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
