"""Concurrent computation and communication: pairs, strategies, and what each is worth."""

from weft.c3.advice import Advice, advise, advised_rows
from weft.c3.mechanisms import MECHANISMS, without
from weft.c3.pair_pricing import (
    PricedPair,
    Pricer,
    gemm_slowdown,
    price_scenario,
    scenarios_of,
)
from weft.c3.scenarios import GEMMS, SCENARIOS, TILE_SCHEDULES, Gemm, Scenario, parse_gemm
from weft.c3.strategies import STRATEGIES, pair_schedule, without_units

__all__ = [
    "GEMMS",
    "MECHANISMS",
    "SCENARIOS",
    "STRATEGIES",
    "TILE_SCHEDULES",
    "Advice",
    "Gemm",
    "PricedPair",
    "Pricer",
    "Scenario",
    "advise",
    "advised_rows",
    "gemm_slowdown",
    "pair_schedule",
    "parse_gemm",
    "price_scenario",
    "scenarios_of",
    "without",
    "without_units",
]
