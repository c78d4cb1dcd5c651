"""Plots of what DMA engines cost: the phases, the variants, and each mechanism left out."""

from __future__ import annotations

from dataclasses import replace

from validation.latte_prices import by_engines, by_rccl, phase_shares
from validation.latte_tables import ALL_GATHER, PHASES, VARIANTS
from weft.collectives import FETCH_METHODS, algorithms, collective, fetch, fetch_platform
from weft.collectives.catalogue import ENGINE_FEATURES
from weft.hardware import Platform, platform
from weft.report.svg import Axis, Chart, Series
from weft.simulator import simulate
from weft.units import format_size

SIZES = tuple(1 << power for power in range(10, 31, 2))
_TIMES = (1, 10, 100, 1000, 10000, 100000)
TICKS = tuple(1 << power for power in (10, 15, 20, 25, 30))

# What a mechanism is without: the constants of [dma] that vanish, and a variant that pays them.
MECHANISMS: dict[str, tuple[str, dict[str, float]]] = {
    "control and doorbell: one host thread feeds all engines": (
        "dma",
        {"control": 0.0, "doorbell": 0.0},
    ),
    "fetch: an engine reads its ring after the doorbell": ("dma-b2b", {"fetch": 0.0}),
    "start: every packet, also back to back": ("dma-b2b+prelaunch", {"start": 0.0}),
    "drain: once before a signal": ("dma-b2b+prelaunch", {"drain": 0.0}),
    "sync: a completion reaches the host": ("dma-b2b+prelaunch", {"sync": 0.0}),
    "observe: the host looks at one after another": ("dma+prelaunch", {"observe": 0.0}),
    "two destinations: turning costs rate": ("dma-bcst+prelaunch", {"paired_rate": 48e9}),
}


def plots() -> dict[str, Chart]:
    """Draw all of them, by name."""
    machine = platform("mi300x-8")
    drawn = {
        "phases": _phases(machine),
        "all-gather": _all_gather(machine),
        "all-to-all": _all_to_all(machine),
        "power": _power(machine),
        "copies": _copies(machine),
    }
    for name, (algorithm, changed) in MECHANISMS.items():
        chart = _without(machine, name, algorithm, changed)
        drawn[f"mechanism-{name.split(':')[0].replace(' ', '-')}"] = chart
    return drawn


def _sizes(*ticks: int) -> Axis:
    return Axis("size", ticks or TICKS, format_size, log=True)


def _micro(title: str = "us", ticks: tuple[float, ...] = _TIMES) -> Axis:
    return Axis(title, ticks, log=True)


def _phases(machine: Platform) -> Chart:
    sizes = list(PHASES)
    found = [phase_shares(size, machine) for size in sizes]
    series = []
    for number, name in enumerate(("control", "schedule", "copy", "sync")):
        series.append(Series(name, sizes, [shares[number] for shares in found], "line", number))
        published = [PHASES[size][number] for size in sizes]
        series.append(Series(name, sizes, published, "dots", number, listed=False))
    x = Axis("size of one copy", [1 << 10, 1 << 14, 1 << 18, 1 << 22, 1 << 26], format_size, True)
    y = Axis("% of its time", [0, 20, 40, 60, 80, 100])
    return Chart("Phases of one copy: weft (lines), published (dots)", x, y, series)


def _seconds(kind: str, name: str, nbytes: int, machine: Platform) -> float:
    schedule = collective(kind, name, num_ranks=machine.num_ranks, nbytes=nbytes)
    return simulate(schedule, machine).seconds


def _all_gather(machine: Platform) -> Chart:
    sizes = list(ALL_GATHER)
    plain = [_seconds("all_gather", "dma", size, machine) for size in sizes]
    series = []
    for number, name in enumerate(VARIANTS):
        taken = [_seconds("all_gather", name, size, machine) for size in sizes]
        speeds = [a / b for a, b in zip(plain, taken, strict=True)]
        series.append(Series(name, sizes, speeds, "line", number))
        published = [ALL_GATHER[size][number] for size in sizes]
        series.append(Series(name, sizes, published, "dots", number, listed=False))
    y = Axis("speed over dma", [0, 1, 2, 3, 4, 5])
    return Chart("All-gather: weft (lines), published (dots)", _sizes(), y, series)


def _all_to_all(machine: Platform) -> Chart:
    names = [name for name in algorithms("all_to_all") if name in ENGINE_FEATURES]
    series = [
        Series(
            name,
            SIZES,
            [1e6 * _seconds("all_to_all", name, size, machine) for size in SIZES],
            "dashes" if "prelaunch" in name else "line",
            number % 3,
        )
        for number, name in enumerate(names)
    ]
    rccl = [1e6 * by_rccl("all_to_all", size, machine).seconds for size in SIZES]
    series.append(Series("RCCL (kernel)", SIZES, rccl, "line", 6))
    chart = Chart("All-to-all on 8 MI300X, predicted", _sizes(), _micro(), series)
    return replace(chart, height=420)


def _power(machine: Platform) -> Chart:
    names = ("dma", "dma+prelaunch", "dma-bcst", "dma-b2b")
    series = [
        Series(
            name,
            SIZES,
            [by_engines("all_gather", name, size, machine).watts for size in SIZES],
            "dashes" if "prelaunch" in name else "line",
            number,
        )
        for number, name in enumerate(names)
    ]
    rccl = [by_rccl("all_gather", size, machine).watts for size in SIZES]
    series.append(Series("RCCL (kernel)", SIZES, rccl, "line", 6))
    y = Axis("watts of one device", [100, 150, 200, 250, 300, 350])
    return Chart("All-gather: mean power", _sizes(), y, series)


def _copies(machine: Platform) -> Chart:
    blocks = [1 << power for power in range(10, 23)]
    series = []
    for number, way in enumerate(FETCH_METHODS):
        taken = [
            simulate(fetch(1024, size, way), fetch_platform(machine, way, block_bytes=size)).seconds
            for size in blocks
        ]
        each = [1e6 * seconds / 1024 for seconds in taken]
        series.append(Series(way, blocks, each, "line", number))
    x = Axis("block", [1 << 10, 1 << 14, 1 << 18, 1 << 22], format_size, log=True)
    y = _micro("us per block", (0.01, 0.1, 1, 10, 100))
    return Chart("Blocks fetched from the host, 1024 of them", x, y, series)


def _without(machine: Platform, title: str, name: str, changed: dict[str, float]) -> Chart:
    """Return the same all-gather with a mechanism and without it; times matter at small sizes."""
    device = machine.require_device()
    dma = replace(device.require_dma(), **changed)  # type: ignore[arg-type]
    without = replace(machine, device=replace(device, dma=dma))
    large = "paired_rate" in changed
    sizes = [size for size in SIZES if large or size <= 1 << 20]

    def line(network: Platform) -> list[float]:
        return [1e6 * _seconds("all_gather", name, size, network) for size in sizes]

    series = [
        Series(name, sizes, line(machine), "line"),
        Series("without it", sizes, line(without), "dashes"),
    ]
    step = 10 if max(series[0].ys) > 30 else 5
    ticks = range(0, int(max(series[0].ys)) + 2 * step, step)
    y = _micro() if large else Axis("us", list(ticks))
    x = _sizes() if large else _sizes(1 << 10, 1 << 15, 1 << 20)
    return Chart(title, x, y, series, width=620, height=280)
