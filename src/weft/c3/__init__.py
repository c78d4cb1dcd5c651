"""Concurrent computation and communication: pairs, strategies, and what each is worth."""

from weft.c3.scenarios import SCENARIOS, Gemm, Scenario

__all__ = ["SCENARIOS", "Gemm", "Scenario"]
