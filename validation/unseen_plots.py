"""Plots of kernels that no fit was shown: predicted over measured, and how well ranges hold.

A range is meant to hold four of five times. Stretched and shrunk, it should hold any other share as
well: the plot of ranges shows what it holds then.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from validation.kernel_tables import Study, by_sibling, gemm_studies
from validation.nccl_tables import data_folder
from validation.other_tables import deepbench_products, vidur_products
from validation.published_attention import held_out
from validation.splits import VIDUR_LAYERS
from validation.vidur_layers import layer_studies
from weft.cost.price import price_columns
from weft.hardware import platform
from weft.report.svg import Axis, Chart, Series

Floats = NDArray[np.float64]
_SAMPLED, _SHOWN = 300, 50  # times of a table, and points of them in a plot
_SHARES = tuple(n / 20 for n in range(1, 20))
_MEANT = 0.8  # share of measured times that a range is meant to hold


@dataclass(frozen=True, slots=True)
class UnseenTable:
    """Times of one table, and what weft says of them, in seconds."""

    name: str
    measured: Floats
    price: Floats
    low: Floats
    high: Floats

    def inside(self, share: float) -> float:
        """Return what a range that is meant to hold ``share`` holds."""
        wider = NormalDist().inv_cdf((1 + share) / 2) / NormalDist().inv_cdf((1 + _MEANT) / 2)
        low = self.price * (self.low / self.price) ** wider
        high = self.price * (self.high / self.price) ** wider
        return float(np.mean((low <= self.measured) & (self.measured <= high)))


def unseen_tables(folder: Path) -> Iterator[tuple[str, UnseenTable]]:
    """Read every table of kernels that no fit was shown, with its family."""
    for study in (vidur_products(folder), *deepbench_products(folder)):
        yield "products", _priced(study, f"{study.device.name} {study.dtype}")
    for study in gemm_studies(folder, "gb200"):
        device = by_sibling(platform("gb200-nvl72").require_device())
        yield "products", _priced(replace(study, device=device), f"gb200 {study.dtype}")
    for table in VIDUR_LAYERS.held_out:
        for study in layer_studies(folder, (table,)):
            yield (
                "layers",
                _priced(study, f"{study.family} {table.split('-hf')[0].replace('/', ' ')}"),
            )
    for family in ("attention", "attention-backward"):
        for library in ("flash2", "flash3", "cudnn"):
            found = held_out("h100", library, family)
            if found is not None:
                yield "attention", _priced(found, f"{family} by {library}", library)


def _priced(study: Study, name: str, implementation: str = "") -> UnseenTable:
    mine = study.sample(_SAMPLED)
    found = price_columns(mine.family, mine.columns, mine.device, mine.dtype, implementation)
    return UnseenTable(name, mine.seconds, found.seconds, found.low, found.high)


def plots() -> dict[str, Chart]:
    """Draw parity of each family and the calibration of ranges; nothing without the tables."""
    folder = data_folder()
    if folder is None:
        return {}
    families: dict[str, list[UnseenTable]] = {}
    for family, table in unseen_tables(folder):
        families.setdefault(family, []).append(table)
    return {f"parity-{name}": parity(name, each) for name, each in families.items()} | {
        "ranges": calibration_of_ranges("kernels", families)
    }


_MICROSECONDS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)


def parity(name: str, tables: list[UnseenTable], ticks: tuple[float, ...] = _MICROSECONDS) -> Chart:
    """Draw predicted over measured times."""
    unit, scale = ("us", 1e6) if ticks[0] < 1e-4 else ("ms", 1e3)
    x, y = (
        Axis(f"{what}, {unit}", ticks, lambda value: f"{scale * value:g}", log=True)
        for what in ("measured", "predicted")
    )
    series = [
        Series("equal", (ticks[0], ticks[-1]), (ticks[0], ticks[-1]), "dashes", 6, listed=False)
    ]
    for number, table in enumerate(tables):
        few = slice(None, None, max(1, len(table.price) // _SHOWN))
        kept = [np.clip(each[few], ticks[0], ticks[-1]) for each in (table.measured, table.price)]
        series.append(Series(table.name, kept[0].tolist(), kept[1].tolist(), "dots", number))
    return Chart(f"{name}: tables that no fit was shown", x, y, series, width=820, height=460)


def calibration_of_ranges(what: str, families: dict[str, list[UnseenTable]]) -> Chart:
    """Draw what ranges hold over what they are meant to hold, stretched and shrunk."""
    ticks = (0, 20, 40, 60, 80, 100)
    x, y = Axis("% that a range is meant to hold", ticks), Axis("% that it holds", ticks)
    shares = [100 * share for share in _SHARES]
    series = [Series("as meant", (0.0, 100.0), (0.0, 100.0), "dashes", 6)]
    for number, (name, tables) in enumerate(families.items()):
        held = [100 * float(np.mean([t.inside(share) for t in tables])) for share in _SHARES]
        series.append(Series(name, shares, held, "line", number))
    return Chart(f"Ranges of {what} that no fit was shown", x, y, series)
