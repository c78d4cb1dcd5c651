"""What a calibration measured of torch, its accuracy, and whether the machine was idle."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.hardware import Platform

_SHOWN = (64 << 10, 1 << 20, 16 << 20)  # sizes of collectives


def print_torch(platform: "Platform") -> None:
    """Print ops, host, collectives and codecs, as far as they were measured."""
    if platform.torch is not None:
        _print_laws(platform)
        _print_host(platform)
        _print_libraries(platform)
    _print_calm(platform)


def _print_laws(platform: "Platform") -> None:
    from weft.report.text import Column, print_table

    titles = {"flop": "Gflop/s at best", "byte": "GB/s at best"}
    rows = []
    for law in platform.require_device().laws:
        best = {
            key: f"{1e-9 / law.terms[key]:.1f}" for key in titles if law.terms.get(key, 0.0) > 0
        }
        rows.append({"family": law.family, "threads": law.threads, "error": law.error, **best})
    columns = [
        Column("family", "ops of torch", right=False, style="bold"),
        Column("threads", "threads"),
        *(Column(key, title) for key, title in titles.items()),
        Column("error", "error on others", "{:.0%}".format),
    ]
    print()
    print_table(columns, rows)


def _print_host(platform: "Platform") -> None:
    from weft.units import format_time

    host = platform.torch
    assert host is not None
    print(
        f"\nPython and autograd add {format_time(host.forward)} to an op of the forward pass, "
        f"{format_time(host.backward)} backward, {format_time(host.optimizer)} in the optimizer"
    )


def _print_libraries(platform: "Platform") -> None:
    from weft.cost.nccl import library_price
    from weft.report.text import Column, print_table
    from weft.units import format_size, format_time

    cut, rows = platform.resized(2), []
    for library in platform.libraries:
        for fit in library.fits:
            sizes = {
                str(n): library_price(cut, fit.collective, n, name=library.name).seconds
                for n in _SHOWN
            }
            rows.append({"library": library.name, "kind": fit.collective, **sizes})
    columns = [
        Column("library", "library", right=False),
        Column("kind", "2 ranks", right=False, style="bold"),
        *(Column(str(n), format_size(n), format_time) for n in _SHOWN),
    ]
    print()
    print_table(columns, rows)


def _print_calm(platform: "Platform") -> None:
    calm = platform.calm
    if calm is None:
        return
    seen = f"others had {calm.foreign:.0%} of the cores, a repeated copy moved by {calm.spread:.0%}"
    print(f"\nmeasured in {calm.seconds:.0f} s; {seen}")
    if calm.is_noisy:
        print(
            "this machine was NOT quiet: calibrate again when it is, or expect errors of that size"
        )
