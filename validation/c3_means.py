"""The thirty scenarios by every strategy, and the means that were published for them."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING

from weft.c3 import SCENARIOS, PricedPair, Pricer, price_scenario

if TYPE_CHECKING:
    from weft.hardware import Platform

# Mean percent of ideal, arXiv 2412.14335.
MEANS = {
    "concurrent": 21.0,
    "priority": 42.0,
    "partition": 41.0,
    "priority+partition": 42.0,
    "dma": 66.0,
    "dma+partition": 72.0,
}


def priced_list(machine: Platform) -> list[PricedPair]:
    """Return the thirty scenarios by every strategy."""
    pricer = Pricer(machine)
    return [row for each in SCENARIOS for row in price_scenario(each, pricer)]


def mean_percent(rows: list[PricedPair], strategy: str) -> float:
    """Return the mean percent of ideal of one strategy."""
    return fmean(row.percent_of_ideal for row in rows if row.choice.name == strategy)
