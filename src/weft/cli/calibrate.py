"""``weft calibrate``: measure this machine into the platform ``here``."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.options import Json, output_path
from weft.cli.progress import track

if TYPE_CHECKING:
    from weft.hardware import Platform


def calibrate(
    *,
    json: Json = False,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the platform to this .toml file instead."
        ),
    ] = None,
) -> None:
    """Measure step by step, write the file, show what matters."""
    from weft.runtime.calibrate import STEPS, calibrated, measure_step, save

    path = output_path(output, (".toml",))
    found = {name: measure_step(act) for name, act in track(STEPS, "measuring this machine")}
    platform = calibrated(found)
    where = save(platform, path)
    if json:
        from weft.report.results import results_json

        print(results_json("calibrate", "here", _rows(platform), file=str(where)))
        return
    _print(platform)
    use = "weft collective all_gather --on here" if path is None else f"--on {where}"
    print(f"\nwrote {where}: use it as {use}")


def _rows(platform: "Platform") -> list[dict[str, Any]]:
    """Give the rates of each working set, in bytes per second."""
    from dataclasses import asdict

    shared = platform.require_device().shared
    assert shared is not None
    return [{"set": key, **asdict(each)} for key, each in shared.sets.items()]


def _print(platform: "Platform") -> None:
    from weft.report.text import Column, print_table
    from weft.units import format_rate

    print(f"here: {platform.title}")
    titles = {"cached": "copy", "streamed": "past caches", "reduced": "sum of two"}
    columns = [Column("set", "bytes in use", right=True, style="bold")]
    for name, title in titles.items():
        columns.append(Column(name, title, format_rate))
        columns.append(Column(f"{name}_both", "both cores", format_rate))
    print_table(columns, _rows(platform))
    _print_rest(platform)


def _print_rest(platform: "Platform") -> None:
    from weft.report.text import Column, print_table
    from weft.units import format_rate, format_size, format_time

    device = platform.require_device()
    shared = device.shared
    assert shared is not None
    latency = platform.levels[0].latency
    rows = [
        (
            "a flag is seen",
            f"{format_time(latency)} spinning, {format_time(shared.yield_latency)} yielding",
        ),
        ("a prepared call", format_time(device.launch)),
        ("waking an engine", format_time(device.require_dma().fetch)),
        ("reading another process", format_rate(shared.far_rate)),
        (
            "products, one thread",
            ", ".join(
                f"{name} {each.achieved / 1e9:.1f} Gflop/s"
                for name, each in device.flops.items()
                if name in ("fp32", "fp64")
            ),
        ),
        ("copies go past the caches", f"from {format_size(shared.streamed_from)}"),
        ("little is laid out, not read", f"up to {format_size(shared.eager_up_to)}"),
        ("little is laid out and joined", f"up to {format_size(shared.eager_reduced_up_to)}"),
    ]
    print()
    columns = [Column("what", "", right=False), Column("value", "", right=False)]
    print_table(columns, [{"what": what, "value": value} for what, value in rows])
