"""Plots of computation overlapped with collectives: what each mechanism does, and the means."""

from __future__ import annotations

import numpy as np

from validation.c3_means import MEANS, mean_percent, priced_list
from weft.c3 import GEMMS, MECHANISMS, without, without_units
from weft.cost.gemm import refetched
from weft.hardware import Platform, platform
from weft.report.svg import Axis, Chart, Series
from weft.simulator import unit_rate


def plots() -> dict[str, Chart]:
    """Draw all of them, by name."""
    machine = platform("mi300x-8")
    return {
        "waves": _waves(machine),
        "cache": _cache(),
        "load": _load(machine),
        "means": _means(machine),
    }


def _waves(machine: Platform) -> Chart:
    device, lost = machine.require_device(), list(range(129))
    series = [Series("linear", lost, [100 * k / (304 - k) for k in lost], "dashes", 6)]
    for number, (name, kind) in enumerate((("cb1", "compute bound"), ("mb2", "memory bound"))):
        times = [without_units(GEMMS[name], k, device) for k in lost]
        slower = [100 * (each / times[0] - 1) for each in times]
        series.append(Series(f"{name}, {kind}", lost, slower, colour=number))
    x, y = Axis("units lost of 304", range(0, 129, 32)), Axis("% slower", range(-10, 91, 20))
    return Chart("A GEMM that loses units: steps of waves, a little less traffic", x, y, series)


def _cache() -> Chart:
    filled = np.linspace(0, 2, 100)
    shares = (100 * refetched(filled, 16)).tolist()
    x = Axis("live lines / lines of the L2", (0.0, 0.5, 1.0, 1.5, 2.0))
    y = Axis("% of lines fetched twice", range(0, 101, 25))
    return Chart(
        "A cache that seems to have room", x, y, [Series("16 ways", filled.tolist(), shares)]
    )


def _load(machine: Platform) -> Chart:
    """Return what units and engines move while products keep memory and caches busy."""
    device, loads = machine.require_device(), np.linspace(0, 1, 50)
    peers, link = machine.num_ranks - 1, machine.levels[0].rate
    share = peers / machine.num_ranks  # of what units move, links see what is for peers
    stretch = device.kernels.load_latency
    engines = peers * device.require_dma().engine_rate / (1 + stretch * loads)
    series = [Series("7 engines", loads.tolist(), (np.minimum(link, engines) / 1e9).tolist())]
    for number, units in enumerate((32, 16)):
        moved = units * unit_rate(machine, "all_gather") * share / (1 + 2 * stretch * loads)
        rates = (np.minimum(link, moved) / 1e9).tolist()
        series.append(
            Series(f"{units} units, L2 as busy", loads.tolist(), rates, colour=number + 1)
        )
    x, y = Axis("load of the memory", (0.0, 0.25, 0.5, 0.75, 1.0)), Axis("GB/s", range(0, 401, 100))
    return Chart("What load leaves of an all-gather", x, y, series)


def _means(machine: Platform) -> Chart:
    """Return the published means, weft's, and weft's without each mechanism that matters much."""
    names = list(MEANS)
    places = list(range(len(names)))
    series = [Series("published", places, list(MEANS.values()), "dots", 3)]
    for number, name in enumerate(("", *(each.name for each in MECHANISMS))):
        rows = priced_list(without(machine, name) if name else machine)
        means = [mean_percent(rows, strategy) for strategy in names]
        label = f"without {name}" if name else "weft"
        series.append(Series(label, places, means, "dashes" if name else "line", number))
    x = Axis("", places, lambda place: names[round(place)])
    return Chart("Mean percent of ideal", x, Axis("%", range(0, 101, 20)), series, width=900)
